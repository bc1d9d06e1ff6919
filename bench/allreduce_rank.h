// One rank with repeated calls of `allreduce` or of the library's own sum, on a host or a device.
// Each call starts with a fresh copy of the gradient.
#pragma once

#include <tersor/buffer.h>
#include <tersor/collectives.h>
#include <tersor/threads.h>

#include <memory>
#include <string>

#include "bench/allreduce_case.h"
#include "bench/fleet.h"
#include "bench/iterations.h"

namespace tersor::bench {

/// All buffers and options of one rank, made before the first call.
class AllreduceRank final : public RankCall {
 public:
  /// `input` must outlive this object. Gradient, sum and state use the memory of `input`. On a
  /// device, all calls are queued on the stream.
  AllreduceRank(const AllreduceCase& wanted, ConstValueSpan input, Rank& rank,
                StreamView stream = {});

  /// False while codec auto still tries alternatives.
  bool settled() const;
  /// The codec of the values: "none" for the library's sum.
  std::string codec() const;
  std::string explanation() const { return tuner_ == nullptr ? "" : tuner_->explain(); }

  void restore() override;
  void call() override;
  /// After a reduce-scatter: gathers the whole sum into `gradient` for the check.
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
