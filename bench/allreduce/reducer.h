// Ranks with a simulated training. The backward pass is a sleep, so codecs can use all cores.
// Parameters become ready for the GradientReducer one after the other, at equal intervals.
#pragma once

#include <fmt/format.h>
#include <tersor/align.h>
#include <tersor/reducer.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "bench/allreduce/allreduce.h"
#include "bench/common/timing.h"

namespace tersor::bench {

/// A rank's gradients and reducer. A call is a step.
class ReducerRank final : public RankCall {
 public:
  ReducerRank(const CollectiveCase& config, const BackwardPass& pass, ConstValueSpan input,
              Transport& transport, Elastic elastic = Elastic::kOff)
      : pass_(pass),
        input_(input),
        storage_(input.bytes()),
        reducer_(transport, {.rules = {{"*", config.codec}},
                             .auto_codecs = config.automatic.codecs,
                             .reduction = Reduction::kSum,
                             .algorithm = config.algorithm,
                             .chunk_count = config.chunk_count,
                             .elastic = elastic,
                             .threads = config.threads}) {
    const std::size_t each = ceil_div(input.count(), pass.parameters);
    for (std::size_t first = 0; first < input.count(); first += each) {
      names_.push_back(fmt::format("parameter{}", names_.size()));
      reducer_.add(names_.back(), gradient().subspan(first, std::min(each, input.count() - first)));
    }
  }

  void restore() override { std::memcpy(storage_.pointer(), input_.pointer(), input_.bytes()); }

  void call() override { time(); }

  // `part_seconds` is the exposed time in `wait`.
  IterationTimes time() override {
    const Stopwatch watch;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const double share = static_cast<double>(i + 1) / static_cast<double>(names_.size());
      std::this_thread::sleep_until(start +
                                    std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::duration<double>(pass_.seconds * share)));
      reducer_.ready(names_[i]);
    }
    const Stopwatch waiting;
    reducer_.wait();
    return times(watch.seconds(), waiting.seconds());
  }

  // Empty, because the reducer counts over all steps.
  const CollectiveStatistics& statistics() const override { return none_; }

  ValueSpan gradient() const { return storage_.values(input_.count(), input_.dtype()); }
  GradientReducer& reducer() { return reducer_; }

 private:
  BackwardPass pass_;
  ConstValueSpan input_;
  Buffer storage_;
  GradientReducer reducer_;
  std::vector<std::string> names_;
  CollectiveStatistics none_;
};

}  // namespace tersor::bench
