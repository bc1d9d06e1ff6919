// The tests over NCCL, and, where the environment says so, one rank of one of them.

#include "tests/gpu/nccl/ranks.h"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  if (const auto status = tersor::test::run_named_body()) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
