// The host overhead of a call, excluding launches: calls of a single rank, with CUDA and NCCL
// functions replaced by counters. The time of CUDA and NCCL per launch and call comes on top.
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
constexpr double kMostSecondsALaunch = 0.3e-6;  // time of the library for its parameters
constexpr std::size_t kChunkCount = std::size_t{1} << 18;

/// The median duration of many calls, and the counters of one call.
struct Cost {
  double seconds = 0;
  idle::Counts counts;
};

idle::Counts operator-(const idle::Counts& after, const idle::Counts& before) {
  return {after.launches - before.launches, after.events - before.events,
          after.pointers - before.pointers, after.questions - before.questions,
          after.nccl_calls - before.nccl_calls};
}

/// The counters of a call after warm-up.
template <typename Call>
idle::Counts counts_of(const Call& call) {
  constexpr int kWarmCalls = 200;
  for (int i = 0; i < kWarmCalls; ++i) call();
  const idle::Counts before = idle::counts;
  call();
  return idle::counts - before;
}

template <typename Call>
Cost cost_of(const Call& call) {
  constexpr int kCalls = 2001;
  const idle::Counts counts = counts_of(call);
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
  idle::Counts most;  ///< maximum per call

  std::string name() const {
    return codec + " " + std::string(algorithm_name(algorithm)) + ", " + std::to_string(ranks) +
           " ranks, " + std::to_string(chunks) + (chunks == 1 ? " chunk" : " chunks");
  }
};

/// A gradient on the idle device, with residuals and state words.
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

/// Runs `measure` on an allreduce and returns its result.
template <typename Measure>
auto of_allreduce(const Case& wanted, const Measure& measure) {
  const idle::Nccl nccl;
  const auto owned_transport = make_nccl_transport(idle::communicator_of(wanted.ranks));
  Transport& transport = *owned_transport;
  const Stream stream;
  State memory(wanted.chunks * kChunkCount);
  CollectiveWorkspace workspace;
  const CollectiveOptions options{.codec = wanted.codec,
                                  .algorithm = wanted.algorithm,
                                  .state = &memory.state(),
                                  .chunk_count = kChunkCount,
                                  .workspace = &workspace};
  return measure([&] { allreduce(transport, memory.gradient(), options, stream.view()); });
}

/// Runs `measure` on a step of a reducer with `kBuckets` buckets and returns its result.
constexpr std::size_t kBuckets = 4;

template <typename Measure>
auto of_step(int ranks, const Measure& measure) {
  constexpr std::size_t kParameters = 20, kCount = std::size_t{1} << 14;
  const idle::Nccl nccl;
  const auto owned_transport = make_nccl_transport(idle::communicator_of(ranks));
  Transport& transport = *owned_transport;
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
  return measure([&] {
    for (const std::string& name : names) reducer.ready(name);
    reducer.wait();
  });
}

const auto kCount = [](const auto& call) { return counts_of(call); };
const auto kTime = [](const auto& call) { return cost_of(call); };

const char* const kTopk = "topk:density=0.01+ef";

// The current numbers. Lower a number after an improvement.
const Case kCases[] = {
    {"int8", Algorithm::kOneShot, 2, 1, {7, 4, 12, 31, 4}},
    {"int8", Algorithm::kOneShot, 2, 16, {67, 66, 192, 421, 64}},
    {"int8", Algorithm::kOneShot, 8, 1, {7, 4, 24, 43, 16}},
    {"int8", Algorithm::kOneShot, 8, 16, {67, 66, 384, 613, 256}},
    {"int8", Algorithm::kTwoShot, 2, 1, {14, 6, 27, 66, 8}},
    {"int8", Algorithm::kTwoShot, 2, 16, {179, 130, 432, 981, 128}},
    {"int8", Algorithm::kTwoShot, 8, 1, {38, 6, 99, 216, 32}},
    {"int8", Algorithm::kTwoShot, 8, 16, {563, 130, 1584, 3381, 512}},
    {kTopk, Algorithm::kOneShot, 2, 1, {15, 4, 14, 42, 4}},
    {kTopk, Algorithm::kOneShot, 2, 16, {15, 4, 14, 42, 4}},
    {kTopk, Algorithm::kOneShot, 8, 1, {15, 4, 26, 54, 16}},
    {kTopk, Algorithm::kOneShot, 8, 16, {15, 4, 26, 54, 16}},
    {"none", Algorithm::kNative, 2, 1, {5, 2, 11, 30, 3}},
    {"none", Algorithm::kNative, 2, 16, {5, 2, 11, 30, 3}},
    {"none", Algorithm::kNative, 8, 1, {11, 2, 41, 102, 3}},
    {"none", Algorithm::kNative, 8, 16, {11, 2, 41, 102, 3}},
};

void expect_at_most(const idle::Counts& counts, const idle::Counts& most) {
  EXPECT_GT(counts.launches, 0);
  EXPECT_LE(counts.launches, most.launches);
  EXPECT_LE(counts.events, most.events);
  EXPECT_LE(counts.pointers, most.pointers);
  EXPECT_LE(counts.questions, most.questions);
  EXPECT_LE(counts.nccl_calls, most.nccl_calls);
}

TEST(Overhead, AllreduceStaysWithinCallLimits) {
  for (const Case& wanted : kCases) {
    SCOPED_TRACE(wanted.name());
    expect_at_most(of_allreduce(wanted, kCount), wanted.most);
  }
}

TEST(Overhead, ReducerStepStaysWithinCallLimits) {
  expect_at_most(of_step(2, kCount), {27, 26, 140, 311, 16});
  expect_at_most(of_step(8, kCount), {151, 42, 1172, 2279, 128});
}

TEST(OverheadRealTime, AllreduceStaysWithinTimeLimit) {
  for (const Case& wanted : kCases) {
    const Cost cost = of_allreduce(wanted, kTime);
    print(wanted.name(), cost);
    if (wanted.chunks != 1 || wanted.ranks != 2) continue;
    const auto launches = static_cast<double>(cost.counts.launches);
    EXPECT_LT(cost.seconds, kMostSeconds + kMostSecondsALaunch * launches);
  }
}

TEST(OverheadRealTime, ReducerStepStaysWithinTimeLimitPerBucket) {
  for (const int ranks : {2, 8}) {
    const Cost cost = of_step(ranks, kTime);
    print("step of a reducer, " + std::to_string(ranks) + " ranks", cost);
    if (ranks != 2) continue;
    const auto launches = static_cast<double>(cost.counts.launches);
    EXPECT_LT(cost.seconds, kBuckets * kMostSeconds + kMostSecondsALaunch * launches);
  }
}

}  // namespace
}  // namespace tersor::test
