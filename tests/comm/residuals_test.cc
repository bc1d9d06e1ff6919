// The memory of residuals alone.
#include "comm/reducer/residuals.h"

#include <gtest/gtest.h>

namespace tersor {
namespace {

TEST(Residuals, PlacedAnewTheyBeginAnew) {
  const auto residence = make_residence(Memory::kHost, {});
  Residuals residuals(Dtype::kF32, 1);
  residuals.place(*residence);
  residuals.add(100, 50);  // and the next one failed
  residuals.place(*residence);
  residuals.add(100, 50);
  residuals.add(200, 0);
  EXPECT_EQ(residuals.parameters(), 2u);
  EXPECT_EQ(residuals.current_sender(0).count(), 100u);
  EXPECT_EQ(residuals.current_owner(0).count(), 50u);
  EXPECT_EQ(residuals.current_sender(1).count(), 200u);
  EXPECT_TRUE(residuals.current_owner(1).empty());
}

}  // namespace
}  // namespace tersor
