// The tests over NCCL, and, where the environment says so, one rank of one of them.

#include "tests/gpu/nccl/ranks.h"
#include "tests/support/codec_conformance.h"

#include <gtest/gtest.h>

namespace tersor::test {

// It comes along with the shared code of tests; tersor_gpu_test runs it.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CodecConformance);

}  // namespace tersor::test

int main(int argc, char** argv) {
  if (const auto status = tersor::test::run_named_body()) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
