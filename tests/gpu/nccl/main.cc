// The tests over NCCL. If the environment requests a rank, runs only this rank.

#include "tests/gpu/nccl/ranks.h"
#include "tests/support/codec_conformance.h"

#include <gtest/gtest.h>

namespace tersor::test {

// Part of the shared test code; runs in tersor_gpu_test.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CodecConformance);

}  // namespace tersor::test

int main(int argc, char** argv) {
  if (const auto status = tersor::test::run_named_body()) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
