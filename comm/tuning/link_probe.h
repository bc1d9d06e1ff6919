// Measures a link through a transport with a few messages, in a few milliseconds.
#pragma once

#include <tersor/auto.h>
#include <tersor/transport.h>

#include <chrono>
#include <span>

namespace tersor {

/// Measures the cost of messages for a memory. Collective. All ranks get the same figures, the
/// means over ranks. All figures are 0 for a single rank. Throws TransportError if a rank is
/// missing at the timeout.
LinkFigures probe_link(Transport& transport, Memory memory, std::chrono::milliseconds timeout);

/// Replaces each value by the maximum over ranks, in place. Throws TransportError if signatures
/// differ.
void agree_on_maximum(Transport& transport, std::span<float> values,
                      std::chrono::milliseconds timeout, std::uint64_t signature = 0,
                      std::shared_ptr<const Agreement> agreement = {});

}  // namespace tersor
