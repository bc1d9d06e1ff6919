// Allreduces of device memory.

#include <fmt/format.h>
#include <tersor/error.h>

#include <memory>

#include "bench/allreduce/rank.h"
#include "bench/common/gpu/gpu.h"
#include "bench/common/timing.h"
#include "kernels/device/device.h"

namespace tersor::bench {
namespace {

/// The type of additions in the library below.
Dtype sum_dtype(const CollectiveCase& config, Dtype gradient) {
  if (config.by_library || config.codec == "none") return gradient;
  return config.codec == "bf16" ? Dtype::kBf16 : Dtype::kF16;  // no other codec adds natively
}

/// The gradient of a rank on the device.
struct DeviceInput {
  DeviceInput(ConstValueSpan values, StreamView stream)
      : memory(values.bytes(), Memory::kDevice),
        span(memory.pointer(), values.count(), values.dtype(), Memory::kDevice) {
    copy_bytes({values.pointer(), values.bytes()}, memory.span(), stream);
  }

  Buffer memory;
  ConstValueSpan span;
};

/// A rank's calls and times in one case.
class DeviceAllreduceRank final : private DeviceInput, public CollectiveRank {
 public:
  DeviceAllreduceRank(const MeasuredCase& one, Rank& rank, const Stream& stream, bool replays)
      : DeviceInput(one.gradients->of(rank.index()), stream.view()),
        CollectiveRank(one.config, span, rank, stream.view()),
        replays_(replays),
        clock_(stream.view()) {}

  /// Rank 0 checks the result. All ranks compare their bits. Later calls may be replays.
  void check(const RankGradients& gradients) override;
  void restore() override {
    CollectiveRank::restore();
    kernels::synchronize(stream_);
  }
  void call() override { graph_ == nullptr ? CollectiveRank::call() : graph_->queue(); }
  /// `seconds` is the device time from the call's first kernel to the last kernel. `part_seconds`
  /// is the host time until the call returned.
  IterationTimes time() override;
  bool waits_after_call() const override { return false; }

 private:
  void compare(const RankGradients& gradients, ConstValueSpan actual);
  std::size_t count_differing_from_host(const RankGradients& gradients,
                                        ConstValueSpan actual) const;

  bool replays_;
  DeviceClock clock_;
  std::unique_ptr<CallGraph> graph_;
};

void DeviceAllreduceRank::check(const RankGradients& gradients) {
  CollectiveRank::restore();
  rank_.barrier();
  call();
  const ValueSpan sum = whole();
  const Buffer bits(sum.bytes());
  copy_bytes({sum.pointer(), sum.bytes()}, bits.span(), stream_);
  check_identical(rank_, bits.span(), config_.codec);
  if (rank_.is_rank0()) compare(gradients, bits.values(sum.count(), sum.dtype()));
  if (replays_)
    graph_ = std::make_unique<CallGraph>(
        stream_, [this] { CollectiveRank::call(); }, 1);
}

void DeviceAllreduceRank::compare(const RankGradients& gradients, ConstValueSpan actual) {
  const Algorithm algorithm = statistics().algorithm;
  relative_error_ = check_sum(gradients, codec(), actual);
  if (config_.by_library || algorithm == Algorithm::kNative)
    wrong_ = count_outside(gradients, sum_dtype(config_, gradients.dtype()), actual);
  else if (algorithm != Algorithm::kHierarchical)
    wrong_ = count_differing_from_host(gradients, actual);
  if (wrong_.value_or(0) != 0)
    throw Error(fmt::format("{}, {}: {} of {} values are wrong", config_.codec,
                            config_.by_library ? "library" : algorithm_name(algorithm), *wrong_,
                            actual.count()));
}

std::size_t DeviceAllreduceRank::count_differing_from_host(const RankGradients& gradients,
                                                           ConstValueSpan actual) const {
  CollectiveCase same = config_;
  same.algorithm = statistics().algorithm;
  const Buffer expected = reduced_on_host(gradients, same);
  return count_different(expected.values(actual.count(), actual.dtype()), actual);
}

IterationTimes DeviceAllreduceRank::time() {
  double host_seconds = 0;
  const double seconds = clock_.seconds_of([&] {
    const Stopwatch watch;
    call();
    host_seconds = watch.seconds();
  });
  return times(seconds, host_seconds);
}

}  // namespace

std::vector<CallResult> measure_on_device(Fleet& fleet, std::span<const MeasuredCase> cases,
                                          bool replays) {
  return measure_on(fleet, [&](Rank& rank) {
    const Stream stream;
    const auto make = [&](const MeasuredCase& one) {
      return std::make_unique<DeviceAllreduceRank>(one, rank, stream, replays);
    };
    return measure_cases(rank, cases, make);
  });
}

}  // namespace tersor::bench
