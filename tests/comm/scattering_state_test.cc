// Portable states of sharded and of all-reduced parameters.
#include "comm/collectives/parts.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace tersor::testing {
namespace {

/// The collective of "w" (allreduce or reduce_scatter), and its hosts; no hosts means the direct
/// algorithm.
struct OwingCase {
  int ranks;
  Collective collective;
  std::vector<int> hosts = {};

  ReducerOptions options() const {
    return {.codec = "int4+ef",
            .algorithm = hosts.empty() ? Algorithm::kAuto : Algorithm::kHierarchical,
            .hosts = hosts};
  }
};

/// The parameter "w". Its residuals move between runs with different numbers of ranks.
class Owing {
 public:
  static constexpr std::size_t kRows = 50, kColumns = 100, kCount = kRows * kColumns;

  Owing(Transport& transport, const OwingCase& tested)
      : transport_(transport),
        collective_(tested.collective),
        reducer(transport, tested.options()) {
    const auto ranks = static_cast<std::size_t>(transport.ranks());
    shard_.resize(ceil_div(kRows, ranks) * kColumns);  // whole rows, padded
    gradient_.resize(scatters() ? ranks * shard_.size() : kCount);
    reducer.add("w", {.count = kCount,
                      .rows = kRows,
                      .columns = kColumns,
                      .collective = tested.collective,
                      .shard_count = scatters() ? shard_.size() : 0});
  }

  void step(const Values& values) {
    std::copy(values.begin(), values.end(), gradient_.begin());
    if (scatters())
      reducer.ready("w", gradient_, shard_);
    else
      reducer.ready("w", gradient_);
    reducer.wait();
  }

  /// The sum of steps with zero gradients: this rank's shard, or all values.
  std::vector<double> drain() {
    std::vector<double> rest(scatters() ? shard_.size() : kCount, 0.0);
    for (int i = 0; i < 200; ++i) {
      step(Values(gradient_.size(), 0.0f));
      const Values& found = scatters() ? shard_ : gradient_;
      for (std::size_t j = 0; j < rest.size(); ++j) rest[j] += found[j];
    }
    return rest;
  }

  bool scatters() const { return collective_ == Collective::kReduceScatter; }
  std::size_t first() const {
    return scatters() ? static_cast<std::size_t>(transport_.rank()) * shard_.size() : 0;
  }

 private:
  Transport& transport_;
  Collective collective_;
  Values gradient_, shard_;

 public:
  GradientReducer reducer;
};

/// The residuals per value, in units of the mean, after loading the state on `tested.ranks` ranks.
std::vector<double> owed_by(const OwingCase& tested, const std::vector<std::byte>& state) {
  std::vector<double> all(Owing::kCount, 0.0);
  std::mutex writing;
  run_ranks(tested.ranks, {}, [&](Transport& transport) {
    Owing run(transport, tested);
    run.reducer.load_state(state);
    const std::vector<double> rest = run.drain();
    const std::lock_guard lock(writing);
    for (std::size_t i = 0; i < rest.size() && run.first() + i < all.size(); ++i)
      all[run.first() + i] = rest[i];
  });
  return all;
}

/// The portable state after some steps.
std::vector<std::byte> state_of(const OwingCase& tested) {
  std::vector<std::byte> state;
  run_ranks(tested.ranks, {}, [&](Transport& transport) {
    Owing run(transport, tested);
    for (int step = 0; step < 3; ++step)
      run.step(gaussian(Owing::kCount, static_cast<std::uint64_t>(step * 10 + transport.rank())));
    const auto saved = run.reducer.save_portable_state();
    if (transport.rank() == 0) state = saved;
  });
  return state;
}

constexpr Collective kShards = Collective::kReduceScatter;

const OwingCase kOwingCases[] = {{2, kShards},
                                 {3, kShards},
                                 {4, kShards},
                                 {2, Collective::kAllreduce},
                                 {4, Collective::kAllreduce},
                                 {4, kShards, {0, 1, 1, 0}},
                                 {6, kShards, {0, 1, 2, 0, 1, 2}},
                                 {4, Collective::kAllreduce, {0, 0, 1, 1}}};

// Between numbers of ranks with different padding, between hosts, and between both collectives.
TEST(ScatteringState, RestoresResidualsOnAnyRanksInEitherCollective) {
  for (const OwingCase& from : {OwingCase{3, kShards}, OwingCase{4, kShards, {0, 0, 1, 1}}}) {
    const std::vector<std::byte> state = state_of(from);
    const std::vector<double> wanted = owed_by(from, state);
    double energy = 0;
    for (const double value : wanted) energy += value * value;
    ASSERT_GT(energy, 0.0);
    for (const OwingCase& to : kOwingCases) {
      const std::vector<double> found = owed_by(to, state);
      double error = 0;
      for (std::size_t i = 0; i < found.size(); ++i)
        error += (found[i] - wanted[i]) * (found[i] - wanted[i]);
      EXPECT_LE(error / energy, 1e-6) << to.ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace tersor::testing
