// The trainer on CUDA learns. This file tests the steps on the GPU; trainer_test.cc tests the
// gradients.
#include <gtest/gtest.h>

#include <vector>

#include "bench/train/cuda/teacher.h"
#include "bench/train/trainer/network.h"

namespace trainer {
namespace {

constexpr std::size_t kInputs = 12, kClasses = 4, kBatch = 16;

TEST(TrainerCuda, LearnsWhatTheTeacherKnows) {
  Network<ElementMachine> network({}, std::vector<std::size_t>{kInputs, 32, kClasses}, 3);
  Teacher teacher(kInputs, kClasses, 5);
  double right = 0;
  constexpr int kSteps = 600, kAveraged = 50;
  for (int step = 0; step < kSteps; ++step) {
    const Examples batch = teacher.batch(kBatch);
    network.forward(batch);
    network.backward([](const Parameter&) {});
    network.descend(0.1f);
    if (step >= kSteps - kAveraged) right += network.result().right;
  }
  EXPECT_GT(right / (kAveraged * kBatch), 0.8);
}

}  // namespace
}  // namespace trainer
