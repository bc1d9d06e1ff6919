// Equal steps of a collective or a reducer in either memory, for bitwise comparison of the results.
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

/// The memory and stream of a rank's values.
struct Location {
  Memory memory = Memory::kHost;
  StreamView stream = {};
};

/// Values in either memory. On a device, writes happen in stream order, so code without a wait for
/// the stream sees older values.
class PlacedValues {
 public:
  PlacedValues(std::size_t count, Dtype dtype, const Location& location);

  void write(const Values& values);
  Values read() const { return to_floats(span(), location_.stream); }
  ValueSpan span() const { return memory_.values(count_, dtype_); }

 private:
  std::size_t count_;
  Dtype dtype_;
  Location location_;
  Buffer memory_;
  kernels::PinnedBuffer pinned_;
};

/// The options of a collective.
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

/// The state of one rank in a case with feedback.
class PlacedState {
 public:
  PlacedState(const Case& wanted, const Transport& transport, const Location& location);

  const CollectiveState& state() const { return state_; }
  Values read() const;
  std::uint32_t step() const;

 private:
  Location location_;
  PlacedValues residual_, owner_;
  Buffer words_;
  CollectiveState state_;
};

/// All results of a rank's allreduce steps, then its residuals.
Values allreduce_steps(const Case& wanted, Transport& transport, const Location& location);
/// This rank's shards of the steps, or all shards.
Values reduce_scatter_steps(const Case& wanted, Transport& transport, const Location& location);
Values allgather_steps(const Case& wanted, Transport& transport, const Location& location);
/// The received rows of `count` values. The splits change in each step, and some ranks exchange no
/// rows.
Values all_to_all_steps(const Case& wanted, Transport& transport, const Location& location);

/// This rank's results of a broadcast, a reduce, a gather and a scatter. The last rank is the root.
Values rooted_steps(const Case& wanted, Transport& transport, const Location& location);

/// The results of `ranks` ranks in this process on the host.
using Steps = Values (*)(const Case&, Transport&, const Location&);
std::vector<Values> on_hosts(Steps steps, const Case& wanted, int ranks);

}  // namespace tersor::test
