// all_gather of little among many ranks, in ceil(log2 ranks) rounds instead of ranks - 1 messages
// (Bruck et al., "Efficient algorithms for all-to-all communications", 1997).
//
// A *record* is what one rank gathers to all: its bytes as u64, 8 bytes of zeros, the bytes
// themselves, zeros up to a multiple of 16. Rank r keeps the records of ranks r, r + 1, … (cyclic)
// one behind the other, at first its own alone. In round k it sends the first
// min(2^k, ranks - 2^k) of them to rank r - 2^k, takes as many from rank r + 2^k and puts them
// behind its own: after the last round it has those of all ranks.
//
// Worth it where a message costs its sender more than a round's latency shared out over the
// messages that are saved: with a cost of o a message and a latency of l, (ranks - 1) o + l of the
// direct way against ceil(log2 ranks) (2 o + l). A postman says from where on (RoundsTuning).
#pragma once

#include <cstddef>
#include <memory>

#include "comm/transport/host/channel.h"

namespace tersor::host {

/// What one rank gathers to all others, of whom each sends at most `capacity` bytes.
struct GatherWork {
  ConstByteSpan send;
  std::size_t capacity = 0;
  Envelope envelope;
};

std::unique_ptr<HostTransfer> make_gather_in_rounds(std::shared_ptr<Channel> channel,
                                                    const Operation& operation,
                                                    const GatherWork& work);

}  // namespace tersor::host
