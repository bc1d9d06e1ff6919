// `tersor-bench allreduce --transport nccl` without a GPU: arguments, and errors without a device
// or with a build without NCCL.
#include <tersor/error.h>
#include <tersor/stream.h>

#include "tests/bench/program.h"

#if TERSOR_HAS_NCCL
#include "bench/ranks/nccl/gpu_fleet.h"
#endif

namespace tersor::bench {
namespace {

class NcclAllreduce : public ProgramTest {
 protected:
  static Outcome run_nccl(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"allreduce", "--transport", "nccl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
};

#if TERSOR_HAS_NCCL

bool has_device() {
  try {
    const Stream stream;
    return true;
  } catch (const CudaError&) {
    return false;
  }
}

TEST_F(NcclAllreduce, RejectsOptionsOfOtherTransports) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--parameters", "4"}, {"--explain"}, {"--link", "1Gbit"}, {"--codec", "auto"}};
  for (const auto& arguments : wrong) {
    const Outcome outcome = run_nccl(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments.front();
    EXPECT_NE(outcome.error.find("does not go with"), std::string::npos) << outcome.error;
  }
}

TEST_F(NcclAllreduce, MissingGpuFailsWithoutOutput) {
  if (has_device()) GTEST_SKIP() << "this machine has a GPU";
  const Outcome outcome = run_nccl({});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.error.find("tersor-bench: counting the devices: "), 0u) << outcome.error;
  EXPECT_TRUE(outcome.output.empty()) << outcome.output;
}

TEST(GpuFleet, SharingNoteDescribesSharedGpus) {
  EXPECT_EQ(sharing_note(2, 1, Sharing::kTimeSliced),
            "one GPU, sockets over loopback: the wire is the loopback and the ranks take turns");
  EXPECT_NE(sharing_note(2, 1, Sharing::kConcurrent).find("compute at once"), std::string::npos);
  EXPECT_EQ(sharing_note(4, 2, Sharing::kTimeSliced).find("2 GPUs"), 0u);
  EXPECT_EQ(sharing_note(4, 4, Sharing::kTimeSliced), "");
}

#else

TEST_F(NcclAllreduce, BuildWithoutNcclListsItsTransports) {
  const Outcome outcome = run_nccl({});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.error.find("inproc"), std::string::npos) << outcome.error;
}

#endif

}  // namespace
}  // namespace tersor::bench
