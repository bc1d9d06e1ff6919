// Message headers: ranks with different formats detect the difference and report both.
#include "comm/transport/host/envelope.h"

#include <gtest/gtest.h>

namespace tersor::host {
namespace {

TEST(Envelope, ReportsFormatVersionMismatch) {
  const Expectation expected{.envelope = {.signature = 7}, .capacity = 100};
  Envelope came{.signature = 7, .bytes = 60};
  EXPECT_TRUE(matches(expected, came));
  came.version = 2;
  EXPECT_FALSE(matches(expected, came));
  EXPECT_EQ(mismatch_text(expected, came, "rank 3", "allreduce"),
            "rank 3 uses another version of the transport");
}

TEST(Envelope, AcceptsByteCountsWithinExpectedRange) {
  const Expectation expected{.min_bytes = 10, .capacity = 20};
  for (const std::uint64_t bytes : {9u, 10u, 20u, 21u})
    EXPECT_EQ(matches(expected, {.bytes = bytes}), bytes >= 10 && bytes <= 20) << bytes;
}

}  // namespace
}  // namespace tersor::host
