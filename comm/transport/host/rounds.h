// all_gather of little among many ranks, by `gather_in_rounds` (steps.h): in ceil(log2 ranks) steps
// instead of ranks - 1 messages. A record is what one rank gathers to all: its bytes as u64, 8
// bytes of zeros, the bytes themselves, zeros up to the length of all records.
//
// Worth it where a message costs its sender more than a step's latency shared out over the messages
// that are saved: with a cost of o a message and a latency of l, (ranks - 1) o + l of the direct
// way against ceil(log2 ranks) (2 o + l).
#pragma once

#include <cstddef>
#include <memory>

#include "comm/transport/host/channel.h"

namespace tersor::host {

/// Which all_gathers go in rounds and not directly: those of at least so many ranks and at most so
/// many bytes of each. The same on all ranks.
///
/// Measured in process (ranks as threads on 2 cores, 64 bytes of each, direct / rounds): without a
/// link 0.02 / 0.06 ms on 8 ranks, 0.24 / 0.31 ms on 32; over a link of 1 Gbit/s and 50 us 0.1 /
/// 0.4 ms on 8, 0.9 / 2.0 on 32, 2.8 / 3.0 on 64, 8.3 / 15 on 128, 69 / 57 on 256. With 1 KiB of
/// each the direct way won on all of these.
struct RoundsTuning {
  int least_ranks = 256;
  std::size_t most_bytes = 64;
};

/// `send` goes to all others, of whom each sends at most `capacity` bytes.
std::unique_ptr<HostTransfer> make_gather_in_rounds(const Start& start, ConstByteSpan send,
                                                    std::size_t capacity);

}  // namespace tersor::host
