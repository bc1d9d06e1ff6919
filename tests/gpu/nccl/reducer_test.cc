// The reducer with device gradients over NCCL: the same bits as with CPU threads in every step,
// also across a checkpoint.

#include "tests/comm/ranks.h"
#include "tests/gpu/nccl/reduction.h"

#include <tersor/inprocess.h>
#include <tersor/reducer.h>

#include <memory>

namespace tersor::test {
namespace {

constexpr int kSteps = 6, kSavedBefore = 3;

struct Shape {
  const char* name;
  std::size_t rows, columns;

  std::size_t count() const { return rows * columns; }
};
constexpr Shape kShapes[] = {{"a", 301, 401}, {"b", 7, 3}, {"c", 513, 1021}, {"d", 97, 131}};

/// Equal codec and algorithm for all parameters, because NCCL's own sums have another order.
ReducerOptions options_for(StreamView stream = {}) {
  return {.rules = {{"*", "int8+ef"}},
          .algorithm = Algorithm::kTwoShot,
          .bucket_bytes = 1 << 18,
          .chunk_count = 100'000,
          .stream = stream};
}

std::vector<float> gradient(const Shape& shape, int step, int rank) {
  const auto seed = static_cast<std::uint64_t>(step * 100 + rank * 10 + shape.name[0]);
  return testing::gaussian(shape.count(), seed);
}

/// Parameters after each step, on all ranks.
using Steps = std::vector<std::vector<Bytes>>;

Steps steps_on_cpu(Transport& transport) {
  std::vector<std::vector<float>> gradients;
  for (const Shape& shape : kShapes) gradients.emplace_back(shape.count());
  GradientReducer reducer(transport, options_for());
  for (std::size_t p = 0; p < gradients.size(); ++p)
    reducer.add(kShapes[p].name, gradients[p], kShapes[p].rows, kShapes[p].columns);
  Steps steps;
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t p = gradients.size(); p-- > 0;) {
      const std::vector<float> values = gradient(kShapes[p], step, transport.rank());
      std::ranges::copy(values, gradients[p].begin());
      reducer.ready(kShapes[p].name);
    }
    reducer.wait();
    steps.emplace_back();
    for (const auto& values : gradients) {
      const auto bytes = std::as_bytes(std::span(values));
      steps.back().emplace_back(bytes.begin(), bytes.end());
    }
  }
  return steps;
}

Steps steps_on_cpu(int ranks) {
  Steps steps;
  run_ranks(ranks, {}, [&](Transport& transport) {
    Steps own = steps_on_cpu(transport);
    if (transport.rank() == 0) steps = std::move(own);
  });
  return steps;
}

/// A reducer with its gradients on the device.
class DeviceTraining {
 public:
  DeviceTraining(Transport& transport, const Stream& stream)
      : rank_(transport.rank()), stream_(stream) {
    for (const Shape& shape : kShapes)
      gradients_.emplace_back(shape.count() * sizeof(float), Memory::kDevice);
    restart(transport);
  }

  /// Creates a new reducer, as after a checkpoint.
  void restart(Transport& transport) {
    reducer_.reset();
    reducer_ = std::make_unique<GradientReducer>(transport, options_for(stream_.view()));
    for (std::size_t p = 0; p < gradients_.size(); ++p)
      reducer_->add(kShapes[p].name, gradients_[p].values(kShapes[p].count(), Dtype::kF32),
                    kShapes[p].rows, kShapes[p].columns);
  }

  void step(int step) {
    for (std::size_t p = gradients_.size(); p-- > 0;) {
      const std::vector<float> values = gradient(kShapes[p], step, rank_);
      check_cuda(cudaMemcpyAsync(gradients_[p].pointer(), values.data(), gradients_[p].bytes(),
                                 cudaMemcpyHostToDevice,
                                 static_cast<cudaStream_t>(stream_.view().handle)));
      reducer_->ready(kShapes[p].name);
    }
    reducer_->wait();
  }

  void require_bits(const std::vector<Bytes>& expected, int step) const {
    stream_.synchronize();
    for (std::size_t p = 0; p < gradients_.size(); ++p)
      require(to_host(gradients_[p]) == expected[p], std::string("parameter ") + kShapes[p].name +
                                                         " differs from the CPU's in step " +
                                                         std::to_string(step));
  }

  GradientReducer& reducer() { return *reducer_; }

 private:
  int rank_;
  const Stream& stream_;
  std::vector<Buffer> gradients_;
  std::unique_ptr<GradientReducer> reducer_;
};

const Registered kReducer("reducer", [](const RankIdentity& identity) {
  const Steps expected = steps_on_cpu(identity.ranks);
  const auto owned_transport = make_nccl_transport(meet(identity));
  Transport& transport = *owned_transport;
  const Stream stream;
  DeviceTraining training(transport, stream);
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSavedBefore) {
      const std::vector<std::byte> state = training.reducer().save_state();
      training.restart(transport);
      training.reducer().load_state(state);
    }
    training.step(step);
    training.require_bits(expected[static_cast<std::size_t>(step)], step);
  }
});

class NcclReducer : public OverNccl, public ::testing::WithParamInterface<int> {};

TEST_P(NcclReducer, StepsHaveTheCpusBitsAcrossACheckpoint) { expect_passes(kReducer, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Ranks, NcclReducer, ::testing::Values(2, 4));

}  // namespace
}  // namespace tersor::test
