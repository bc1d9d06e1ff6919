// See expectations.h.

#include "tests/device/expectations.h"

#include "tests/support/guarded.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tersor::test {

void expect_same_frame(ConstByteSpan host, ConstByteSpan device) {
  ASSERT_EQ(host.size(), device.size());
  const auto first = std::ranges::mismatch(host, device).in1;
  EXPECT_TRUE(first == host.end())
      << "frames differ at byte " << first - host.begin() << " of " << host.size()
      << " (the payload begins at " << sizeof(FrameHeader) << ")";
}

void expect_same_values(const std::vector<float>& host, const std::vector<float>& device,
                        const char* what) {
  EXPECT_TRUE(same_values(host, device)) << what << ", host and device";
}

void expect_same_words(const StateWords& host, const StateWords& device) {
  EXPECT_EQ(host.step, device.step);
  EXPECT_EQ(host.gradient_factor, device.gradient_factor);
  EXPECT_EQ(host.residual_factor, device.residual_factor);
  EXPECT_EQ(host.overflows, device.overflows);
}

}  // namespace tersor::test
