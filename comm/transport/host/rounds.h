// all_gather of short inputs among many ranks with `gather_in_rounds` (steps.h): ceil(log2 ranks)
// steps instead of ranks - 1 messages. Each rank contributes a record: the payload size as u64, 8
// zero bytes, the payload, and zeros up to the common record size.
//
// Rounds pay off if the cost per message is high compared with the latency. Let o be the cost per
// message and l the latency. The direct algorithm takes (ranks - 1) o + l, and rounds take
// ceil(log2 ranks) (2 o + l).
#pragma once

#include <cstddef>
#include <memory>

#include "comm/transport/host/channel.h"

namespace tersor::host {

/// The limits for rounds: at least `min_ranks` ranks and at most `max_bytes` bytes per rank.
/// Must be equal on all ranks.
///
/// Measured in process (ranks as threads on 2 cores, 64 bytes per rank), in milliseconds:
///
///   link             ranks   direct   rounds
///   none                 8     0.02     0.06
///   none                32     0.24     0.31
///   1 Gbit/s, 50 us      8     0.1      0.4
///   1 Gbit/s, 50 us     32     0.9      2.0
///   1 Gbit/s, 50 us     64     2.8      3.0
///   1 Gbit/s, 50 us    128     8.3     15
///   1 Gbit/s, 50 us    256    69       57
///
/// With 1 KiB per rank, the direct algorithm was faster in all of these cases.
struct RoundsTuning {
  int min_ranks = 256;
  std::size_t max_bytes = 64;
};

/// Sends `send` to all other ranks. Each other rank sends at most `capacity` bytes.
std::unique_ptr<HostTransfer> make_gather_in_rounds(const Start& start, ConstByteSpan send,
                                                    std::size_t capacity);

}  // namespace tersor::host
