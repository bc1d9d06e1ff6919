// Lets each CUDA runtime call of the ranks fail once: collectives and the reducer on device memory.
#include "tests/device_comm/steps.h"
#include "tests/gpu/injected.h"

#include <cstring>
#include <mutex>

namespace tersor::test {
namespace {

using Bytes = std::vector<std::byte>;
using OnRank = std::function<Values(Transport&, const Location&)>;

constexpr cudaError_t kErrors[] = {cudaErrorMemoryAllocation, cudaErrorIllegalAddress,
                                   cudaErrorDevicesUnavailable};

/// Ranks in this process, with their concatenated results.
class Ranks : public Scenario {
 public:
  Ranks(std::size_t ranks, OnRank body) : body_(std::move(body)), values_(ranks) {}

  void run() override {
    run_ranks(static_cast<int>(values_.size()), {}, [&](Transport& transport) {
      const Stream stream;
      values_[static_cast<std::size_t>(transport.rank())] =
          body_(transport, {Memory::kDevice, stream.view()});
      stream.synchronize();
    });
  }
  Bytes result() override {
    Bytes all;
    for (const Values& values : values_) {
      const auto bytes = std::as_bytes(std::span(values));
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  const OnRank body_;
  std::vector<Values> values_;
};

Scene scene_of(const std::string& name, const OnRank& body, std::size_t ranks = 2) {
  return {name, [=] { return std::make_unique<Ranks>(ranks, body); }, Callers::kRanks, 50};
}

Scene scene_of(const std::string& name, Steps steps, const Case& wanted) {
  const auto body = [=](Transport& transport, const Location& location) {
    return steps(wanted, transport, location);
  };
  const std::size_t ranks = wanted.hosts.empty() ? 2 : wanted.hosts.size();
  return scene_of(name + " of " + wanted.codec, body, ranks);
}

Values train(Transport& transport, const Location& location, Transactional transactions,
             const std::vector<ReducerRule>& rules = {{"*.bias", "bf16"}, {"*", "int8+ef"}}) {
  constexpr std::size_t kCount = 600;
  PlacedValues weight(kCount, Dtype::kF32, location), bias(70, Dtype::kF32, location);
  GradientReducer reducer(transport, {.rules = rules,
                                      .chunk_count = 512,
                                      .transactional = transactions,
                                      .stream = location.stream});
  reducer.add("a.weight", weight.span(), 20, 30);
  reducer.add("a.bias", bias.span());
  Values all;
  for (int step = 0; step < 2; ++step) {
    weight.write(testing::gaussian(kCount, 10 * step + transport.rank()));
    bias.write(testing::gaussian(70, 10 * step + transport.rank() + 5));
    reducer.ready("a.bias");
    reducer.ready("a.weight");
    reducer.wait();
    if (transactions == Transactional::kOn && step == 1) reducer.discard_step();
    for (const PlacedValues* values : {&weight, &bias}) {
      const Values more = values->read();
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  reducer.load_state(reducer.save_state());
  return all;
}

TEST_F(InjectedErrors, Allreduce) {
  for (const cudaError_t error : kErrors)
    for (const char* codec : {"none", "int8+ef", "topk:density=0.1"})
      expect_errors(scene_of("allreduce", allreduce_steps, {.codec = codec, .count = 700}), error);
}

TEST_F(InjectedErrors, ReduceScatterAndAllgather) {
  for (const cudaError_t error : kErrors) {
    expect_errors(scene_of("reduce_scatter", reduce_scatter_steps, {.codec = "int8", .count = 300}),
                  error);
    expect_errors(scene_of("allgather", allgather_steps, {.codec = "int4", .count = 300}), error);
  }
}

TEST_F(InjectedErrors, HierarchicalAllreduce) {
  const Case wanted{
      .algorithm = Algorithm::kHierarchical, .codec = "int8", .count = 900, .hosts = {0, 0, 1}};
  for (const cudaError_t error : kErrors)
    expect_errors(scene_of("hierarchical", allreduce_steps, wanted), error);
}

TEST_F(InjectedErrors, Reducer) {
  for (const Transactional transactions : {Transactional::kOff, Transactional::kOn})
    for (const cudaError_t error : kErrors)
      expect_errors(scene_of("reducer",
                             [=](Transport& transport, const Location& location) {
                               return train(transport, location, transactions);
                             }),
                    error);
}

// The codec changes at step 1. Errors between the steps are reported on all ranks, too.
TEST_F(InjectedErrors, ReducerWithCodecSchedule) {
  const std::vector<ReducerRule> rules{{"*", "bf16"}, {"*", "lowrank:rank=2+ef", 1}};
  for (const cudaError_t error : kErrors)
    expect_errors(scene_of("reducer with a schedule",
                           [=](Transport& transport, const Location& location) {
                             return train(transport, location, Transactional::kOff, rules);
                           }),
                  error);
}

}  // namespace
}  // namespace tersor::test
