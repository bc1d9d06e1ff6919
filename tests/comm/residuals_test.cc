// Residual memory in isolation.
#include "comm/reducer/residuals.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <span>

namespace tersor {
namespace {

TEST(Residuals, UseMemoryResetsParameters) {
  const auto backend = make_memory_backend(Memory::kHost, {});
  Residuals residuals(Dtype::kF32, 1);
  residuals.set_backend(*backend);
  residuals.add(100, 50);  // a failure in the next call
  residuals.set_backend(*backend);
  residuals.add(100, 50);
  residuals.add(200, 0);
  EXPECT_EQ(residuals.parameters(), 2u);
  EXPECT_EQ(residuals.current_sender(0).count(), 100u);
  EXPECT_EQ(residuals.current_owner(0).count(), 50u);
  EXPECT_EQ(residuals.current_sender(1).count(), 200u);
  EXPECT_TRUE(residuals.current_owner(1).empty());
}

TEST(Residuals, DiscardRestoresValuesBeforeJoinedSteps) {
  const auto backend = make_memory_backend(Memory::kHost, {});
  Residuals residuals(Dtype::kF32, 2);
  residuals.set_backend(*backend);
  residuals.add(1, 0);
  residuals.add(1, 0);
  const auto value = [&](std::size_t i) { return residuals.current_sender(i).as<float>()[0]; };
  const auto step = [&](float written, const std::function<bool(std::size_t)>& took_part) {
    for (std::size_t i = 0; i < 2; ++i)
      if (took_part(i)) residuals.sender(i).residual_out.as<float>()[0] = written;
    residuals.commit(took_part);
  };
  const auto all = [](std::size_t) { return true; };
  const std::array<std::size_t, 2> both{0, 1};
  const std::span first(both.data(), 1), second(both.data() + 1, 1);
  residuals.join();
  step(1.0f, all);
  residuals.accept(both);
  step(2.0f, all);
  step(3.0f, [](std::size_t i) { return i == 0; });
  EXPECT_EQ(value(0), 3.0f);
  EXPECT_TRUE(residuals.discard(first));
  EXPECT_FALSE(residuals.discard(first));
  EXPECT_EQ(residuals.take_discarded(), 0u);  // parameter 1 is still pending
  EXPECT_EQ(value(0), 1.0f);
  EXPECT_EQ(value(1), 2.0f);
  residuals.discard(second);
  EXPECT_EQ(residuals.take_discarded(), 2u);
  EXPECT_EQ(value(1), 1.0f);
  step(4.0f, all);
  residuals.accept(first);
  residuals.discard(first);
  residuals.discard(second);
  EXPECT_EQ(residuals.take_discarded(), 0u);  // the step is committed for parameter 0
  EXPECT_EQ(value(0), 4.0f);
  EXPECT_EQ(value(1), 1.0f);
}

}  // namespace
}  // namespace tersor
