// What a call costs the host beside its launches: one rank's calls, with stand-ins of CUDA and NCCL
// that do nothing but count. What CUDA and NCCL take for each launch and call comes on top.
#include "tests/overhead/idle_counts.h"
#include "tests/overhead/idle_nccl.h"

#include <gtest/gtest.h>
#include <tersor/nccl.h>
#include <tersor/tersor.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace tersor::test {
namespace {

constexpr double kMostSeconds = 20e-6;
constexpr double kMostSecondsALaunch = 0.3e-6;  // of our own work: its parameters
constexpr std::size_t kChunkCount = std::size_t{1} << 18;

/// The median of many calls, and what one call asks for.
struct Cost {
  double seconds = 0;
  idle::Counts counts;
};

idle::Counts operator-(const idle::Counts& after, const idle::Counts& before) {
  return {after.launches - before.launches, after.events - before.events,
          after.pointers - before.pointers, after.questions - before.questions,
          after.nccl_calls - before.nccl_calls};
}

template <typename Call>
Cost cost_of(const Call& call) {
  constexpr int kWarmCalls = 200, kCalls = 2001;
  for (int i = 0; i < kWarmCalls; ++i) call();
  const idle::Counts before = idle::counts;
  call();
  const idle::Counts counts = idle::counts - before;
  std::vector<double> seconds;
  for (int i = 0; i < kCalls; ++i) {
    const auto start = Clock::now();
    call();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + kCalls / 2, seconds.end());
  return {seconds[kCalls / 2], counts};
}

void print(const std::string& what, const Cost& cost) {
  std::printf(
      "%-34s %7.2f us %5zu launches %4zu NCCL %4zu events %5zu pointers %5zu questions, %.3f us "
      "each\n",
      what.c_str(), 1e6 * cost.seconds, static_cast<std::size_t>(cost.counts.launches),
      static_cast<std::size_t>(cost.counts.nccl_calls),
      static_cast<std::size_t>(cost.counts.events), static_cast<std::size_t>(cost.counts.pointers),
      static_cast<std::size_t>(cost.counts.questions),
      1e6 * cost.seconds / static_cast<double>(cost.counts.all()));
}

struct Case {
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;
  int ranks = 2;
  std::size_t chunks = 1;

  std::string name() const {
    return codec + " " + std::string(algorithm_name(algorithm)) + ", " + std::to_string(ranks) +
           " ranks, " + std::to_string(chunks) + (chunks == 1 ? " chunk" : " chunks");
  }
};

/// A gradient on the idle device, its residuals and its words.
class State {
 public:
  explicit State(std::size_t count)
      : count_(count), gradient_(count * sizeof(float), Memory::kDevice) {}

  ValueSpan gradient() const { return gradient_.values(count_, Dtype::kF32); }
  const CollectiveState& state() const { return state_; }

 private:
  std::size_t count_;
  Buffer gradient_;
  Buffer residual_{count_ * sizeof(float), Memory::kDevice};
  Buffer words_{sizeof(StateWords), Memory::kDevice};
  CollectiveState state_{
      residual_.values(count_, Dtype::kF32), {}, reinterpret_cast<StateWords*>(words_.pointer())};
};

Cost cost_of_allreduce(const Case& wanted) {
  const idle::Nccl nccl;
  NcclTransport transport(idle::communicator_of(wanted.ranks));
  const Stream stream;
  State memory(wanted.chunks * kChunkCount);
  CollectiveWorkspace workspace;
  const CollectiveOptions options{.codec = wanted.codec,
                                  .algorithm = wanted.algorithm,
                                  .state = &memory.state(),
                                  .chunk_count = kChunkCount,
                                  .workspace = &workspace};
  return cost_of([&] { allreduce(transport, memory.gradient(), options, stream.view()); });
}

void expect_little(const Case& wanted) {
  const Cost cost = cost_of_allreduce(wanted);
  print(wanted.name(), cost);
  if (wanted.chunks != 1 || wanted.ranks != 2) return;
  const auto launches = static_cast<double>(cost.counts.launches);
  EXPECT_GT(launches, 0);
  EXPECT_LT(cost.seconds, kMostSeconds + kMostSecondsALaunch * launches);
}

TEST(OverheadRealTime, OfAnAllreduceIsLittleBesideItsLaunches) {
  for (const int ranks : {2, 8})
    for (const std::size_t chunks : {1, 16})
      for (const auto& [codec, algorithm] : {std::pair{"int8", Algorithm::kOneShot},
                                             {"int8", Algorithm::kTwoShot},
                                             {"topk:density=0.01+ef", Algorithm::kOneShot},
                                             {"none", Algorithm::kNative}})
        expect_little({codec, algorithm, ranks, chunks});
}

TEST(OverheadRealTime, OfAReducersStepIsLittleForEachBucket) {
  constexpr std::size_t kParameters = 20, kBuckets = 4, kCount = std::size_t{1} << 14;
  const idle::Nccl nccl;
  for (const int ranks : {2, 8}) {
    NcclTransport transport(idle::communicator_of(ranks));
    const Stream stream;
    const Buffer gradients(kParameters * kCount * sizeof(float), Memory::kDevice);
    const ValueSpan all = gradients.values(kParameters * kCount, Dtype::kF32);
    GradientReducer reducer(transport,
                            {.rules = {{"*", "int8+ef"}},
                             .bucket_bytes = kParameters / kBuckets * kCount * sizeof(float),
                             .stream = stream.view()});
    std::vector<std::string> names;
    for (std::size_t i = 0; i < kParameters; ++i) {
      names.push_back("layer" + std::to_string(i) + ".weight");
      reducer.add(names.back(), all.subspan(i * kCount, kCount), kCount / 128, 128);
    }
    const Cost cost = cost_of([&] {
      for (const std::string& name : names) reducer.ready(name);
      reducer.wait();
    });
    print("step of a reducer, " + std::to_string(ranks) + " ranks", cost);
    if (ranks != 2) continue;
    const auto launches = static_cast<double>(cost.counts.launches);
    EXPECT_LT(cost.seconds, kBuckets * kMostSeconds + kMostSecondsALaunch * launches);
  }
}

}  // namespace
}  // namespace tersor::test
