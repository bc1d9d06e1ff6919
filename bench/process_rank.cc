// Implements process_rank.h.

#include "bench/process_rank.h"

#include <tersor/error.h>

#include <cstdio>

namespace tersor::bench {

// A barrier ends for the last rank first; the second one brings them closer together.
void ProcessRank::meet() {
  for (int round = 0; round < 2; ++round)
    control_->barrier({.name = "meeting", .tag = control_->reserve_tags(1)}).wait_synchronize();
}

std::vector<std::vector<std::byte>> ProcessRank::gather_bytes(ConstByteSpan own) {
  Handle handle = control_->all_gather({.name = "gathering", .tag = control_->reserve_tags(1)}, own,
                                       own.size());
  handle.wait_synchronize();
  std::vector<std::vector<std::byte>> all;
  for (int rank = 0; rank < control_->ranks(); ++rank) {
    const ConstByteSpan bytes = rank == control_->rank() ? own : handle.received(rank);
    all.emplace_back(bytes.begin(), bytes.end());
  }
  return all;
}

void ProcessRank::library_sum(ValueSpan, StreamView) {
  throw InvalidArgument("this transport has no library that sums for it");
}

void run_rank(Transport& transport, Rank& rank, const std::function<void(Rank&)>& body) {
  try {
    body(rank);
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& error) {
    transport.poison(error.what());  // the others would wait for us
    throw;
  }
}

void silence_unless(bool leads) {
  if (!leads && std::freopen("/dev/null", "w", stdout) == nullptr)
    throw Error("cannot silence this rank's output");
}

}  // namespace tersor::bench
