// One rank with repeated calls of `allreduce` or of the library's own sum, on a host or a device.
// Each call starts with a fresh copy of the gradient.
#pragma once

#include <tersor/buffer.h>
#include <tersor/collectives.h>
#include <tersor/threads.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/allreduce/allreduce.h"

namespace tersor::bench {

/// All buffers and options of one rank, made before the first call.
class AllreduceRank : public RankCall {
 public:
  /// `input` must outlive this object. Gradient, sum and state use the memory of `input`. On a
  /// device, all calls are queued on the stream.
  AllreduceRank(const AllreduceCase& wanted, ConstValueSpan input, Rank& rank,
                StreamView stream = {});

  /// The codec of the values: "none" for the library's sum.
  std::string codec() const;
  std::string explanation() const { return tuner_ == nullptr ? "" : tuner_->explain(); }

  void restore() override;
  void call() override;
  /// Calls until codec auto has chosen, and then checks the result of a call: rank 0 checks the
  /// sum, and all ranks compare their bits.
  virtual void check(const RankGradients& gradients);
  /// The result of a timed case.
  CallResult result(const IterationTimes& times) const {
    return {times, codec(), relative_error_, explanation(), wrong_};
  }

  ValueSpan gradient() const { return storage_.values(input_.count(), input_.dtype()); }
  const CollectiveStatistics& statistics() const override { return statistics_; }

 protected:
  Rank& rank_;
  StreamView stream_;
  double relative_error_ = 0;
  std::optional<std::size_t> wrong_;

 private:
  void make_state(const AllreduceCase& wanted);
  bool scatters() const { return collective_ == Collective::kReduceScatter; }
  ValueSpan shard() const;
  Buffer zeros(std::size_t bytes) const;

  bool by_library_;
  Collective collective_;
  ConstValueSpan input_;
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

/// Checks and times the cases of a rank, in turns. `make(i)` makes the calls of case `i`.
std::vector<CallResult> measure_cases(
    Rank& rank, std::span<const DeviceAllreduceCase> cases, std::size_t iterations,
    const std::function<std::unique_ptr<AllreduceRank>(const DeviceAllreduceCase&)>& make);

}  // namespace tersor::bench
