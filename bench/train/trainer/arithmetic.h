// The arithmetic of a perceptron with ReLU and softmax cross entropy. Each step is a struct that
// computes one element, with a fixed order of additions. Machines run the structs (machine.h). All
// matrices are row-major. W has a row per output of the layer, X has a row per example, and D =
// dLoss/dZ.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TRAINER_BOTH __host__ __device__
#else
#define TRAINER_BOTH
#endif

namespace trainer {

/// The sizes of a layer's product: `examples` rows of `inputs` values become rows of `outputs`
/// values.
struct LayerSizes {
  std::size_t examples, inputs, outputs;
};

enum class Activation : std::uint8_t { kNone, kRelu };

/// Element (example, output) of X Wᵀ + bias.
struct Forward {
  LayerSizes sizes;
  const float *x, *weight, *bias;
  float* z;
  Activation activation;

  std::size_t elements() const { return sizes.examples * sizes.outputs; }

  TRAINER_BOTH void operator()(std::size_t element) const {
    const float* row = x + element / sizes.outputs * sizes.inputs;
    const std::size_t output = element % sizes.outputs;
    float sum = bias[output];
    for (std::size_t i = 0; i < sizes.inputs; ++i)
      sum += row[i] * weight[output * sizes.inputs + i];
    z[element] = activation == Activation::kRelu && sum < 0 ? 0 : sum;
  }
};

/// One example: replaces the scores by D of the mean loss. `chance` receives the label's softmax,
/// whose negative logarithm is the loss. `right` receives 1 if the label has the highest score,
/// otherwise 0.
struct SoftmaxLoss {
  std::size_t examples, classes;
  const std::uint32_t* labels;
  float *scores, *chance, *right;

  std::size_t elements() const { return examples; }

  TRAINER_BOTH void operator()(std::size_t example) const {
    float* row = scores + example * classes;
    const std::uint32_t label = labels[example];
    std::size_t best = 0;
    for (std::size_t c = 1; c < classes; ++c) best = row[c] > row[best] ? c : best;
    const float highest = row[best];
    float sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += row[c] = std::exp(row[c] - highest);
    chance[example] = row[label] / sum;
    right[example] = best == label ? 1.0f : 0.0f;
    for (std::size_t c = 0; c < classes; ++c)
      row[c] = (row[c] / sum - (c == label ? 1.0f : 0.0f)) / static_cast<float>(examples);
  }
};

/// Element (output, input) of Dᵀ X.
struct WeightGradient {
  LayerSizes sizes;
  const float *d, *x;
  float* gradient;

  std::size_t elements() const { return sizes.outputs * sizes.inputs; }

  TRAINER_BOTH void operator()(std::size_t element) const {
    const std::size_t output = element / sizes.inputs, input = element % sizes.inputs;
    float sum = 0;
    for (std::size_t e = 0; e < sizes.examples; ++e)
      sum += d[e * sizes.outputs + output] * x[e * sizes.inputs + input];
    gradient[element] = sum;
  }
};

/// The sum of a column of D.
struct BiasGradient {
  LayerSizes sizes;
  const float* d;
  float* gradient;

  std::size_t elements() const { return sizes.outputs; }

  TRAINER_BOTH void operator()(std::size_t output) const {
    float sum = 0;
    for (std::size_t e = 0; e < sizes.examples; ++e) sum += d[e * sizes.outputs + output];
    gradient[output] = sum;
  }
};

/// Element (example, input) of D W if the layer's input X was above 0; otherwise 0.
struct InputGradient {
  LayerSizes sizes;
  const float *d, *weight, *x;
  float* below;

  std::size_t elements() const { return sizes.examples * sizes.inputs; }

  TRAINER_BOTH void operator()(std::size_t element) const {
    const std::size_t example = element / sizes.inputs, input = element % sizes.inputs;
    float sum = 0;
    for (std::size_t o = 0; o < sizes.outputs; ++o)
      sum += d[example * sizes.outputs + o] * weight[o * sizes.inputs + input];
    below[element] = x[element] > 0 ? sum : 0;
  }
};

/// velocity = momentum * velocity + gradient; value -= rate * velocity.
struct Descend {
  std::size_t count;
  float rate, momentum;
  const float* gradient;
  float *velocity, *value;

  std::size_t elements() const { return count; }

  TRAINER_BOTH void operator()(std::size_t i) const {
    velocity[i] = momentum * velocity[i] + gradient[i];
    value[i] -= rate * velocity[i];
  }
};

}  // namespace trainer
