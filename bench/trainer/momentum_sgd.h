// Stochastic gradient descent with momentum (Polyak 1964), as PyTorch's SGD computes it.
#pragma once

#include "bench/trainer/perceptron.h"

#include <span>
#include <vector>

namespace trainer {

class MomentumSgd {
 public:
  /// Steps the `parameters`, whose memory must outlive it.
  MomentumSgd(std::span<const Parameter> parameters, float momentum);

  /// velocity = momentum * velocity + gradient; value -= learning_rate * velocity.
  void step(float learning_rate);

 private:
  std::span<const Parameter> parameters_;
  std::vector<std::vector<float>> velocities_;
  float momentum_;
};

}  // namespace trainer
