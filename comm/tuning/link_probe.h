// Measures a link over a transport: a few messages, a few milliseconds.
#pragma once

#include <tersor/auto.h>
#include <tersor/transport.h>

#include <chrono>
#include <span>

namespace tersor {

/// A collective call: what messages from and to such memory cost. All ranks get the same figures:
/// means over ranks. One rank: zeros. Throws TransportError where a rank stays away until the
/// timeout.
LinkFigures probe_link(Transport& transport, Memory memory, std::chrono::milliseconds timeout);

/// Each value becomes the largest of all ranks, in place. Ranks whose signatures differ are told.
void agree_on_largest(Transport& transport, std::span<float> values,
                      std::chrono::milliseconds timeout, std::uint64_t signature = 0);

}  // namespace tersor
