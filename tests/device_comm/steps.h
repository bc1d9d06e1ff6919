// The same steps of a collective, or of a reducer, in either memory: what comes out must be the
// same bits.
#pragma once

#include "comm/collectives/host_copy.h"
#include "kernels/device/device_memory.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tersor::test {

using testing::Values;

inline void append(Values& all, const Values& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// Where a rank keeps its values.
struct Place {
  Memory memory = Memory::kHost;
  StreamView stream = {};
};

/// Values in such a place. On a device they are there when the stream comes to it, so that whoever
/// does not wait for the stream sees older ones.
class PlacedValues {
 public:
  PlacedValues(std::size_t count, Dtype dtype, const Place& place);

  void write(const Values& values);
  Values read() const { return to_floats(span(), place_.stream); }
  ValueSpan span() const { return memory_.values(count_, dtype_); }

 private:
  std::size_t count_;
  Dtype dtype_;
  Place place_;
  Buffer memory_;
  kernels::PinnedBuffer pinned_;
};

/// What a call of a collective is made of.
struct Case {
  Algorithm algorithm = Algorithm::kAuto;
  std::string codec = "none";
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  Reduction reduction = Reduction::kMean;
  std::vector<int> hosts = {};
  std::size_t chunk_count = 2048;
  int steps = 2;
  std::vector<int> dims = {};
};

/// State of one rank in a case with feedback.
class PlacedState {
 public:
  PlacedState(const Case& wanted, const Transport& transport, const Place& place);

  const CollectiveState& state() const { return state_; }
  Values read() const;
  std::uint32_t step() const;

 private:
  Place place_;
  PlacedValues residual_, owner_;
  Buffer words_;
  CollectiveState state_;
};

/// All gradients of the steps of one rank's allreduce, then its residuals.
Values allreduce_steps(const Case& wanted, Transport& transport, const Place& place);
/// This rank's shards, or all shards, of the steps.
Values reduce_scatter_steps(const Case& wanted, Transport& transport, const Place& place);
Values allgather_steps(const Case& wanted, Transport& transport, const Place& place);
/// Rows of `count` values that came; other splits in each step, no rows between some.
Values all_to_all_steps(const Case& wanted, Transport& transport, const Place& place);

/// What this rank has of a broadcast, a reduce, a gather and a scatter; the last rank is the root.
Values rooted_steps(const Case& wanted, Transport& transport, const Place& place);

/// What each of so many ranks in this process gets on hosts.
using Steps = Values (*)(const Case&, Transport&, const Place&);
std::vector<Values> on_hosts(Steps steps, const Case& wanted, int ranks);

}  // namespace tersor::test
