// One rank that calls `allreduce`, or the library's own sum, again and again, each time from a
// fresh copy of its gradient: on the host, or on a device.
#pragma once

#include <tersor/buffer.h>
#include <tersor/collectives.h>
#include <tersor/threads.h>

#include <memory>
#include <string>

#include "bench/allreduce_case.h"
#include "bench/fleet.h"
#include "bench/turns.h"

namespace tersor::bench {

/// What one rank needs for its calls: all of it made before the first.
class AllreduceRank final : public RankCall {
 public:
  /// Gradient, sum and state lie where `input` lies, which outlives this object. On a device all
  /// calls are queued on the stream.
  AllreduceRank(const AllreduceCase& wanted, ConstValueSpan input, Rank& rank,
                StreamView stream = {});

  /// False while codec auto still tries several ways.
  bool settled() const;
  /// What carries the values: none's, where the library does.
  std::string codec() const;
  std::string explanation() const { return tuner_ == nullptr ? "" : tuner_->explain(); }

  void restore() override;
  void call() override;
  /// After a reduce-scatter: `gradient` becomes the whole sum, to be checked.
  void gather();

  ValueSpan gradient() const { return storage_.values(input_.count(), input_.dtype()); }
  const CollectiveStatistics& statistics() const override { return statistics_; }

 private:
  void make_state(const AllreduceCase& wanted);
  bool scatters() const { return collective_ == Collective::kReduceScatter; }
  ValueSpan shard() const;
  Buffer zeros(std::size_t bytes) const;

  Rank& rank_;
  bool by_library_;
  Collective collective_;
  ConstValueSpan input_;
  StreamView stream_;
  std::vector<int> hosts_, dims_;
  std::unique_ptr<Tuner> tuner_;
  Buffer storage_;
  Threads threads_;
  Buffer residual_, owner_residual_, words_;
  CollectiveState state_;
  CollectiveWorkspace workspace_;
  CollectiveStatistics statistics_;
  CollectiveOptions options_;
};

}  // namespace tersor::bench
