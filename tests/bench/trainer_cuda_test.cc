// The trainer on CUDA, on the CPU: its gradients against differences of the loss, and that it
// learns. The GPU runs the same structs (bench/trainer_cuda/arithmetic.h).
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "bench/trainer_cuda/network.h"

namespace trainer_cuda {
namespace {

constexpr std::size_t kInputs = 12, kClasses = 4, kBatch = 16;

std::span<float> floats(const tersor::ValueSpan& span) { return span.as<float>(); }

double loss_of(Network<CpuMachine>& network, const Examples& batch) {
  network.forward(batch);
  return network.result().loss;
}

TEST(TrainerCuda, GradientsAreSlopesOfTheLoss) {
  constexpr float kStep = 1e-3f;
  const CpuMachine machine;
  Network<CpuMachine> network(machine, {kInputs, 9, 7, kClasses}, kBatch, 3);
  const Examples batch = Teacher(kInputs, kClasses, 5).batch(kBatch);
  network.forward(batch);
  network.backward([](const Parameter&) {});
  for (const Parameter& parameter : network.parameters()) {
    for (std::size_t i = 0; i < parameter.count(); i += 5) {
      float& value = floats(parameter.values)[i];
      const float before = value;
      value = before + kStep;
      const double above = loss_of(network, batch);
      value = before - kStep;
      const double below = loss_of(network, batch);
      value = before;
      EXPECT_NEAR(floats(parameter.gradient)[i], (above - below) / (2 * kStep), 5e-3)
          << parameter.name << ' ' << i;
    }
  }
}

TEST(TrainerCuda, ReadyComesLastLayerFirstAndOnceForEach) {
  const CpuMachine machine;
  Network<CpuMachine> network(machine, {kInputs, 9, kClasses}, kBatch, 3);
  network.forward(Teacher(kInputs, kClasses, 5).batch(kBatch));
  std::vector<std::string> names;
  network.backward([&](const Parameter& parameter) { names.push_back(parameter.name); });
  EXPECT_EQ(names, (std::vector<std::string>{"layer2.weight", "layer2.bias", "layer1.weight",
                                             "layer1.bias"}));
}

TEST(TrainerCuda, LearnsWhatTheTeacherKnows) {
  const CpuMachine machine;
  Network<CpuMachine> network(machine, {kInputs, 32, kClasses}, kBatch, 3);
  Teacher teacher(kInputs, kClasses, 5);
  BatchResult last;
  constexpr int kSteps = 600, kAveraged = 50;
  for (int step = 0; step < kSteps; ++step) {
    network.forward(teacher.batch(kBatch));
    network.backward([](const Parameter&) {});
    network.descend(0.1f);
    if (step >= kSteps - kAveraged) last.accuracy += network.result().accuracy / kAveraged;
  }
  EXPECT_GT(last.accuracy, 0.8);
}

}  // namespace
}  // namespace trainer_cuda
