// Products of whole matrices: Eigen calls OpenBLAS on the caller's thread.
#include "bench/train/trainer/machine.h"

#include <cblas.h>

#include <Eigen/Core>

#include <thread>

namespace trainer {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<Matrix> matrix(float* values, std::size_t rows, std::size_t columns) {
  return {values, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}

Eigen::Map<const Matrix> matrix(const float* values, std::size_t rows, std::size_t columns) {
  return {values, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}

}  // namespace

CpuMachine::CpuMachine() { openblas_set_num_threads(1); }

void CpuMachine::run(const Forward& step) const {
  const auto& [examples, inputs, outputs] = step.sizes;
  auto z = matrix(step.z, examples, outputs);
  z.noalias() = matrix(step.x, examples, inputs) * matrix(step.weight, outputs, inputs).transpose();
  z.rowwise() += matrix(step.bias, 1, outputs).row(0);
  if (step.activation == Activation::kRelu) z = z.cwiseMax(0.0f);
}

void CpuMachine::run(const WeightGradient& step) const {
  const auto& [examples, inputs, outputs] = step.sizes;
  matrix(step.gradient, outputs, inputs).noalias() =
      matrix(step.d, examples, outputs).transpose() * matrix(step.x, examples, inputs);
}

void CpuMachine::run(const BiasGradient& step) const {
  const auto& [examples, inputs, outputs] = step.sizes;
  matrix(step.gradient, 1, outputs) = matrix(step.d, examples, outputs).colwise().sum();
}

// Yields on shared cores: all ranks then pass through their layers at the same time, like separate
// machines. Without the yield, some ranks would finish before others begin. A collective over all
// ranks could then overlap only with the last ranks' backward pass.
void CpuMachine::run(const InputGradient& step) const {
  std::this_thread::yield();
  const auto& [examples, inputs, outputs] = step.sizes;
  auto below = matrix(step.below, examples, inputs);
  below.noalias() = matrix(step.d, examples, outputs) * matrix(step.weight, outputs, inputs);
  below = (matrix(step.x, examples, inputs).array() > 0.0f).select(below, 0.0f);
}

}  // namespace trainer
