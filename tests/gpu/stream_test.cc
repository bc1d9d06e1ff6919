// Asynchronous calls: captured as graphs, on several streams at once, without waits and
// allocations.

#include "tests/gpu/device_memory.h"
#include "tests/support/grid.h"
#include "tests/support/specs.h"

namespace tersor::test {
namespace {

class OnStream : public ::testing::TestWithParam<const char*> {
 protected:
  std::string spec() const { return GetParam(); }
  static constexpr std::size_t kCount = 300'003;  // 33 rows
};

void run_all(DeviceCodec& codec, const Stream& stream) {
  codec.encode(stream);
  codec.decode(stream);
  if (codec.reduces()) codec.reduce(stream);
}

void expect_same(const DeviceCodec& a, const DeviceCodec& b) {
  EXPECT_TRUE(a.frame() == b.frame());
  EXPECT_TRUE(a.output() == b.output());
  EXPECT_TRUE(a.sum() == b.sum());
  EXPECT_TRUE(a.residual() == b.residual());
  EXPECT_EQ(a.words().step, b.words().step);
}

/// Replays advance the step. Each replay uses new random numbers and sends the remaining residuals.
TEST_P(OnStream, GraphsMatchDirectCalls) {
  const Stream stream;
  const std::vector<float> gradient = gaussian(kCount, 1);
  DeviceCodec called(spec(), gradient), replayed(spec(), gradient);
  for (int step = 0; step < 3; ++step) run_all(called, stream);
  stream.synchronize();
  run_all(replayed, stream);  // the first call queries properties of the device
  const Graph graph(stream, [&] { run_all(replayed, stream); });
  for (int step = 1; step < 3; ++step) graph.replay(stream);
  stream.synchronize();
  expect_same(called, replayed);
  EXPECT_EQ(replayed.words().step, 3u);
}

/// Global capture forbids calls with waits or allocations.
TEST_P(OnStream, SecondCallsNeitherWaitNorAllocate) {
  const Stream stream;
  DeviceCodec codec(spec(), gaussian(kCount, 2), Checksum::kOff);
  run_all(codec, stream);
  stream.synchronize();
  std::size_t before = 0, after = 0, all = 0;
  check_cuda(cudaMemGetInfo(&before, &all));
  EXPECT_NO_THROW(Graph(stream, [&] { run_all(codec, stream); }));
  for (int i = 0; i < (grid_is_small() ? 2 : 10); ++i) run_all(codec, stream);
  check_cuda(cudaMemGetInfo(&after, &all));
  EXPECT_GE(after, before);
  stream.synchronize();
}

TEST_P(OnStream, TwoStreamsAtOnce) {
  const Stream streams[2];
  const Stream alone;
  std::vector<DeviceCodec> together, apart;
  for (std::uint64_t i = 0; i < 2; ++i) {
    together.emplace_back(spec(), gaussian(kCount, i));
    apart.emplace_back(spec(), gaussian(kCount, i));
  }
  for (int step = 0; step < 20; ++step)
    for (int i = 0; i < 2; ++i) run_all(together[i], streams[i]);
  for (int i = 0; i < 2; ++i) {
    streams[i].synchronize();
    for (int step = 0; step < 20; ++step) run_all(apart[i], alone);
    alone.synchronize();
    expect_same(together[i], apart[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, OnStream,
                         ::testing::Values("none", "bf16+ef", "f16+ef", "int8", "int8+ef",
                                           "int8:rounding=stochastic+ef", "int4+ef",
                                           "int4:rounding=stochastic", "topk+ef",
                                           "topk:density=0.001,values=int8+ef", "intsum+ef",
                                           "intsum:bits=16,rounding=stochastic+ef",
                                           "intsum:bits=32", "intsum:scale=0.05+ef", "lowrank+ef",
                                           "lowrank:rank=8,values=bf16+ef"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace tersor::test
