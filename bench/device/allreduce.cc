
#include "bench/device/allreduce.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <memory>

#include "bench/allreduce_rank.h"
#include "bench/device/gpu.h"
#include "bench/timing.h"
#include "bench/wrong_values.h"

namespace tersor::bench {
namespace {

Buffer on_device(ConstValueSpan values, StreamView stream) {
  Buffer copy(values.bytes(), Memory::kDevice);
  copy_bytes({values.pointer(), values.bytes()}, copy.span(), stream);
  return copy;
}

/// The type of additions in the library below.
Dtype added_in(const AllreduceCase& wanted, Dtype gradient) {
  if (wanted.by_library || wanted.codec == "none") return gradient;
  return wanted.codec == "bf16" ? Dtype::kBf16 : Dtype::kF16;  // no other codec adds natively
}

/// A rank's calls and times in one case.
class DeviceAllreduceRank final : public RankCall {
 public:
  DeviceAllreduceRank(const DeviceAllreduceCase& which, Rank& rank, const Stream& stream)
      : wanted_(which.wanted),
        gradients_(*which.gradients),
        rank_(rank),
        stream_(stream),
        clock_(stream.view()),
        input_(on_device(gradients_.of(rank.index()), stream.view())),
        caller_(wanted_, device_values(), rank, stream.view()) {}

  /// Rank 0 checks the result. All ranks compare their bits.
  void check();
  /// Later calls are replays of a captured call.
  void capture() {
    graph_ = std::make_unique<CallGraph>(
        stream_.view(), [this] { caller_.call(); }, 1);
  }
  void restore() override {
    caller_.restore();
    stream_.synchronize();
  }
  void call() override { graph_ == nullptr ? caller_.call() : graph_->queue(); }
  /// `whole` is the device time from the call's first kernel to the last kernel. `part` is the host
  /// time until the call returned.
  IterationTime time() override;
  bool ends_together() const override { return false; }
  const CollectiveStatistics& statistics() const override { return caller_.statistics(); }
  AllreduceResult result(const IterationTimes& times) const {
    return {times, wanted_.codec, relative_error_, "", wrong_};
  }

 private:
  ConstValueSpan device_values() const {
    return {input_.pointer(), gradients_.count(), gradients_.dtype(), Memory::kDevice};
  }
  void compare(ConstValueSpan actual);
  std::size_t count_differing_from_host(ConstValueSpan actual) const;
  Algorithm algorithm() const { return statistics().algorithm; }

  const AllreduceCase& wanted_;
  const RankGradients& gradients_;
  Rank& rank_;
  const Stream& stream_;
  DeviceClock clock_;
  Buffer input_;
  AllreduceRank caller_;
  std::unique_ptr<CallGraph> graph_;
  double relative_error_ = 0;
  std::optional<std::size_t> wrong_;
};

void DeviceAllreduceRank::check() {
  caller_.restore();
  rank_.meet();
  caller_.call();
  const ValueSpan sum = caller_.gradient();
  const Buffer bits = on_host({sum.pointer(), sum.bytes()}, stream_.view());
  check_identical(rank_, bits.span(), wanted_.codec);
  if (rank_.first()) compare(bits.values(sum.count(), sum.dtype()));
}

void DeviceAllreduceRank::compare(ConstValueSpan actual) {
  relative_error_ = check_sum(gradients_, wanted_.by_library ? "none" : wanted_.codec, actual);
  if (wanted_.by_library || algorithm() == Algorithm::kNative)
    wrong_ = count_outside(gradients_, added_in(wanted_, gradients_.dtype()), actual);
  else if (algorithm() != Algorithm::kHierarchical)
    wrong_ = count_differing_from_host(actual);
  if (wrong_.value_or(0) != 0)
    throw Error(fmt::format("{}, {}: {} of {} values are wrong", wanted_.codec,
                            wanted_.by_library ? "library" : algorithm_name(algorithm()), *wrong_,
                            actual.count()));
}

std::size_t DeviceAllreduceRank::count_differing_from_host(ConstValueSpan actual) const {
  AllreduceCase same = wanted_;
  same.algorithm = algorithm();
  const Buffer expected = reduced_on_host(gradients_, same);
  return count_different(expected.values(actual.count(), actual.dtype()), actual);
}

IterationTime DeviceAllreduceRank::time() {
  IterationTime time;
  time.whole = clock_.seconds_of([&] {
    const Stopwatch watch;
    call();
    time.part = watch.seconds();
  });
  return time;
}

std::vector<AllreduceResult> measure_rank(Rank& rank, std::span<const DeviceAllreduceCase> cases,
                                          const DeviceAllreduceTiming& timing) {
  const Stream stream;
  std::vector<std::unique_ptr<DeviceAllreduceRank>> ranks;
  std::vector<RankCall*> callers;
  for (const DeviceAllreduceCase& one : cases) {
    ranks.push_back(std::make_unique<DeviceAllreduceRank>(one, rank, stream));
    ranks.back()->check();
    if (timing.graph) ranks.back()->capture();
    callers.push_back(ranks.back().get());
  }
  const auto times = time_iterations(callers, rank, warm_up(callers, rank, timing.iterations));
  std::vector<AllreduceResult> results;
  for (std::size_t i = 0; i < ranks.size(); ++i) results.push_back(ranks[i]->result(times[i]));
  return results;
}

}  // namespace

std::vector<AllreduceResult> measure_on_device(Fleet& fleet,
                                               std::span<const DeviceAllreduceCase> cases,
                                               const DeviceAllreduceTiming& timing) {
  return measure_on(fleet, [&](Rank& rank) { return measure_rank(rank, cases, timing); });
}

}  // namespace tersor::bench
