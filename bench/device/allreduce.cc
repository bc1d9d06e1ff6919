// See allreduce.h.

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

constexpr int kWarmUpRounds = 2;

Buffer on_device(ConstValueSpan values, StreamView stream) {
  Buffer copy(values.bytes(), Memory::kDevice);
  copy_bytes({values.pointer(), values.bytes()}, copy.span(), stream);
  return copy;
}

/// The type in which the library below adds.
Dtype added_in(const AllreduceCase& wanted, Dtype gradient) {
  if (wanted.by_library || wanted.codec == "none") return gradient;
  return wanted.codec == "bf16" ? Dtype::kBf16 : Dtype::kF16;  // no others add natively
}

/// One rank's part in one case: its calls and their times.
class DeviceAllreduceRank {
 public:
  DeviceAllreduceRank(const DeviceAllreduceCase& which, Rank& rank, const Stream& stream)
      : wanted_(which.wanted),
        gradients_(*which.gradients),
        rank_(rank),
        stream_(stream),
        clock_(stream.view()),
        input_(on_device(gradients_.of(rank.index()), stream.view())),
        caller_(wanted_, device_values(), rank, stream.view()) {}

  /// Rank 0 looks at what it ended with; all compare their bits.
  void check();
  /// From now on replays of a call take a call's place.
  void capture() {
    graph_ = std::make_unique<CallGraph>(
        stream_.view(), [this] { caller_.call(); }, 1);
  }
  /// Seconds on the device; `timed` is kept.
  double call(bool timed);
  DeviceAllreduceResult result();

 private:
  ConstValueSpan device_values() const {
    return {input_.pointer(), gradients_.count(), gradients_.dtype(), Memory::kDevice};
  }
  void compare(ConstValueSpan actual);
  std::size_t count_differing_from_host(ConstValueSpan actual) const;
  double slowest(const std::vector<double>& own) {
    return median_of_slowest(rank_.gather(std::span<const double>(own)));
  }

  const AllreduceCase& wanted_;
  const RankGradients& gradients_;
  Rank& rank_;
  const Stream& stream_;
  DeviceClock clock_;
  Buffer input_;
  AllreduceRank caller_;
  std::unique_ptr<CallGraph> graph_;
  DeviceAllreduceResult result_;
  std::vector<double> seconds_, host_seconds_;
};

void DeviceAllreduceRank::check() {
  caller_.restore();
  rank_.meet();
  caller_.call();
  result_.algorithm = caller_.statistics().algorithm;
  const ValueSpan sum = caller_.gradient();
  const Buffer bits = on_host({sum.pointer(), sum.bytes()}, stream_.view());
  check_identical(rank_, bits.span(), wanted_.codec);
  if (rank_.first()) compare(bits.values(sum.count(), sum.dtype()));
}

void DeviceAllreduceRank::compare(ConstValueSpan actual) {
  result_.relative_error =
      check_sum(gradients_, wanted_.by_library ? "none" : wanted_.codec, actual);
  const Algorithm algorithm = result_.algorithm;
  if (wanted_.by_library || algorithm == Algorithm::kNative)
    result_.wrong = count_outside(gradients_, added_in(wanted_, gradients_.dtype()), actual);
  else if (algorithm != Algorithm::kHierarchical)
    result_.wrong = count_differing_from_host(actual);
  if (result_.wrong.value_or(0) != 0)
    throw Error(fmt::format("{}, {}: {} of {} values are wrong", wanted_.codec,
                            wanted_.by_library ? "library" : algorithm_name(algorithm),
                            *result_.wrong, actual.count()));
}

std::size_t DeviceAllreduceRank::count_differing_from_host(ConstValueSpan actual) const {
  AllreduceCase same = wanted_;
  same.algorithm = result_.algorithm;
  const Buffer expected = reduced_on_host(gradients_, same);
  return count_different(expected.values(actual.count(), actual.dtype()), actual);
}

double DeviceAllreduceRank::call(bool timed) {
  caller_.restore();
  stream_.synchronize();
  rank_.meet();
  double host_seconds = 0;
  const double seconds = clock_.seconds_of([&] {
    const Stopwatch watch;
    graph_ == nullptr ? caller_.call() : graph_->queue();
    host_seconds = watch.seconds();
  });
  if (timed) {
    seconds_.push_back(seconds);
    host_seconds_.push_back(host_seconds);
  }
  return seconds;
}

DeviceAllreduceResult DeviceAllreduceRank::result() {
  DeviceAllreduceResult result = result_;
  result.seconds = slowest(seconds_);
  result.host_seconds = slowest(host_seconds_);
  const std::uint64_t sent = caller_.statistics().sent_bytes;
  for (const auto& bytes : rank_.gather(std::span(&sent, 1)))
    result.wire_bytes = std::max(result.wire_bytes, bytes.front());
  return result;
}

std::size_t rounds_for(const std::vector<double>& seconds) {
  double all = 0;
  for (const double one : seconds) all += one;
  return iterations_for(all / static_cast<double>(seconds.size()));
}

std::vector<DeviceAllreduceResult> measure_rank(Rank& rank,
                                                std::span<const DeviceAllreduceCase> cases,
                                                const DeviceAllreduceTiming& timing) {
  const Stream stream;
  std::vector<std::unique_ptr<DeviceAllreduceRank>> callers;
  for (const DeviceAllreduceCase& one : cases) {
    callers.push_back(std::make_unique<DeviceAllreduceRank>(one, rank, stream));
    callers.back()->check();
    if (timing.graph) callers.back()->capture();
  }
  std::vector<double> seconds(cases.size());
  for (int round = 0; round < kWarmUpRounds; ++round)
    for (std::size_t i = 0; i < callers.size(); ++i) seconds[i] = callers[i]->call(false);
  const std::size_t rounds =
      rank.from_first(timing.iterations == 0 ? rounds_for(seconds) : timing.iterations);
  for (std::size_t round = 0; round < rounds; ++round)
    for (const auto& caller : callers) caller->call(true);
  std::vector<DeviceAllreduceResult> results;
  for (const auto& caller : callers) results.push_back(caller->result());
  return results;
}

}  // namespace

std::vector<DeviceAllreduceResult> measure_on_device(Fleet& fleet,
                                                     std::span<const DeviceAllreduceCase> cases,
                                                     const DeviceAllreduceTiming& timing) {
  std::vector<DeviceAllreduceResult> results;
  fleet.run([&](Rank& rank) {
    auto own = measure_rank(rank, cases, timing);
    if (rank.stores()) results = std::move(own);
  });
  return results;
}

}  // namespace tersor::bench
