// One pass over values, gradients and velocities a step.
#include "bench/trainer/momentum_sgd.h"

namespace trainer {

MomentumSgd::MomentumSgd(std::span<const Parameter> parameters, float momentum)
    : parameters_(parameters), momentum_(momentum) {
  for (const Parameter& parameter : parameters) velocities_.emplace_back(parameter.count(), 0.0f);
}

void MomentumSgd::step(float learning_rate) {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    float* __restrict value = parameters_[p].values.data();
    float* __restrict velocity = velocities_[p].data();
    const float* __restrict gradient = parameters_[p].gradient.data();
    for (std::size_t i = 0; i < parameters_[p].count(); ++i) {
      velocity[i] = momentum_ * velocity[i] + gradient[i];
      value[i] -= learning_rate * velocity[i];
    }
  }
}

}  // namespace trainer
