// A perceptron with any number of layers, ReLU and softmax cross entropy, on a machine. The
// backward pass reports each gradient to the caller as soon as the gradient is final.
#pragma once

#include "bench/train/trainer/dataset.h"
#include "bench/train/trainer/machine.h"
#include "bench/train/trainer/random.h"

#include <tersor/buffer.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainer {

/// A trainable row-major matrix or bias, in the machine's memory. Lives as long as the network.
struct Parameter {
  std::string name;           ///< "layer1.weight", "layer1.bias", …; layer 1 reads the examples
  std::size_t rows, columns;  ///< outputs and inputs of the layer; a bias has one column
  tersor::ValueSpan values, gradient;

  std::size_t count() const { return rows * columns; }
};

/// Called on the caller's thread when a parameter's gradient is final in this backward pass, or
/// queued. The last layer comes first; within a layer, the weight precedes the bias.
using GradientReady = std::function<void(const Parameter&)>;

/// The result of a forward pass.
struct BatchResult {
  double loss = 0;   ///< mean over the examples
  double right = 0;  ///< number of examples whose label has the highest score
};

template <typename Machine>
class Network {
 public:
  /// `widths`: inputs, each hidden layer, classes. Draws initial weights after He, Zhang, Ren and
  /// Sun 2015 from `seed`, equal on all ranks. Biases are 0.
  Network(Machine machine, std::span<const std::size_t> widths, std::uint64_t seed);

  /// Weight and bias of each layer, in the order of layers.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  /// Queues a forward pass. `examples` must stay valid until the end of the backward pass. `result`
  /// returns the loss. Throws std::invalid_argument for inputs of another width.
  void forward(const Examples& examples);
  void forward(Examples&&) = delete;
  /// Queues the backward pass. Overwrites every gradient.
  void backward(const GradientReady& ready);
  /// Queues a step of gradient descent with momentum (Polyak 1964, as in PyTorch's SGD).
  void descend(float rate, float momentum = 0);
  /// Waits for the last forward pass.
  BatchResult result();

 private:
  struct Layer {
    LayerSizes sizes;
    tersor::Buffer output, below;  // `below` is D of the previous layer
  };

  static float* floats(const tersor::Buffer& buffer) {
    return reinterpret_cast<float*>(buffer.pointer());
  }
  static float* floats(const tersor::ValueSpan& span) {
    return reinterpret_cast<float*>(span.pointer());
  }
  const Parameter& weight(std::size_t layer) const { return parameters_[2 * layer]; }
  const Parameter& bias(std::size_t layer) const { return parameters_[2 * layer + 1]; }
  const float* input_of(std::size_t layer) const {
    return layer == 0 ? input_ : floats(layers_[layer - 1].output);
  }
  tersor::ValueSpan learnt(std::size_t count, const std::vector<float>& values);
  void add_parameter(std::string name, std::size_t rows, std::size_t columns,
                     const std::vector<float>& values);
  void reserve(std::size_t examples);

  Machine machine_;
  std::size_t examples_ = 0;
  std::vector<tersor::Buffer> memory_;
  std::vector<Layer> layers_;
  std::vector<Parameter> parameters_;
  std::vector<float*> velocities_;  // one per parameter
  const float* input_ = nullptr;
  tersor::Buffer input_space_, labels_space_, chance_, right_;
};

template <typename Machine>
Network<Machine>::Network(Machine machine, std::span<const std::size_t> widths, std::uint64_t seed)
    : machine_(machine) {
  if (widths.size() < 2) throw std::invalid_argument("a network needs at least two widths");
  Random random({seed});
  for (std::size_t i = 1; i < widths.size(); ++i) {
    const std::size_t inputs = widths[i - 1], outputs = widths[i];
    const float limit = std::sqrt(6.0f / static_cast<float>(inputs));  // variance 2 / inputs
    std::vector<float> weights(outputs * inputs);
    for (float& value : weights) value = random.symmetric() * limit;
    const std::string name = "layer" + std::to_string(i);
    add_parameter(name + ".weight", outputs, inputs, weights);
    add_parameter(name + ".bias", outputs, 1, std::vector<float>(outputs));
    layers_.push_back({{0, inputs, outputs}, {}, {}});
  }
}

/// Allocates memory for training, initialised with `values`.
template <typename Machine>
tersor::ValueSpan Network<Machine>::learnt(std::size_t count, const std::vector<float>& values) {
  memory_.emplace_back(count * sizeof(float), Machine::kMemory);
  machine_.copy(memory_.back().pointer(), values.data(), memory_.back().bytes());
  machine_.synchronize();  // `values` may be freed afterwards
  return memory_.back().values(count, tersor::Dtype::kF32);
}

template <typename Machine>
void Network<Machine>::add_parameter(std::string name, std::size_t rows, std::size_t columns,
                                     const std::vector<float>& values) {
  const std::size_t count = rows * columns;
  const std::vector<float> zeros(count);
  parameters_.push_back(
      {std::move(name), rows, columns, learnt(count, values), learnt(count, zeros)});
  velocities_.push_back(floats(learnt(count, zeros)));
}

/// Allocates memory for `examples` examples at a time.
template <typename Machine>
void Network<Machine>::reserve(std::size_t examples) {
  if (examples == examples_) return;
  machine_.synchronize();  // queued work uses the old memory
  const auto make = [&](std::size_t bytes) {
    return tersor::Buffer(examples * bytes, Machine::kMemory);
  };
  examples_ = examples;
  for (Layer& layer : layers_) {
    layer.sizes.examples = examples;
    layer.output = make(layer.sizes.outputs * sizeof(float));
    layer.below = make(layer.sizes.inputs * sizeof(float));
  }
  input_space_ = make(layers_.front().sizes.inputs * sizeof(float));
  labels_space_ = make(sizeof(std::uint32_t));
  chance_ = make(sizeof(float));
  right_ = make(sizeof(float));
}

template <typename Machine>
void Network<Machine>::forward(const Examples& examples) {
  const std::size_t width = layers_.front().sizes.inputs, count = examples.count();
  if (examples.inputs.size() != count * width)
    throw std::invalid_argument("the network reads " + std::to_string(width) +
                                " values an image, the data set has " +
                                std::to_string(examples.inputs.size() / count));
  reserve(count);
  input_ = static_cast<const float*>(machine_.bring(examples.inputs.data(), input_space_));
  const void* labels = machine_.bring(examples.labels.data(), labels_space_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const bool last = i + 1 == layers_.size();
    machine_.run(Forward{layers_[i].sizes, input_of(i), floats(weight(i).values),
                         floats(bias(i).values), floats(layers_[i].output),
                         last ? Activation::kNone : Activation::kRelu});
  }
  machine_.run(SoftmaxLoss{count, layers_.back().sizes.outputs,
                           static_cast<const std::uint32_t*>(labels), floats(layers_.back().output),
                           floats(chance_), floats(right_)});
}

/// Computes a layer's gradients before D of the previous layer, so gradients can be sent during the
/// computation of D.
template <typename Machine>
void Network<Machine>::backward(const GradientReady& ready) {
  const float* d = floats(layers_.back().output);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    machine_.run(WeightGradient{layer.sizes, d, input_of(i), floats(weight(i).gradient)});
    ready(weight(i));
    machine_.run(BiasGradient{layer.sizes, d, floats(bias(i).gradient)});
    ready(bias(i));
    if (i == 0) return;
    machine_.run(
        InputGradient{layer.sizes, d, floats(weight(i).values), input_of(i), floats(layer.below)});
    d = floats(layer.below);
  }
}

template <typename Machine>
void Network<Machine>::descend(float rate, float momentum) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    machine_.run(Descend{parameters_[i].count(), rate, momentum, floats(parameters_[i].gradient),
                         velocities_[i], floats(parameters_[i].values)});
}

template <typename Machine>
BatchResult Network<Machine>::result() {
  constexpr double kLeastChance = 1e-30;  // avoids an infinite logarithm
  std::vector<float> chances(examples_), right(examples_);
  machine_.copy(chances.data(), chance_.pointer(), chance_.bytes());
  machine_.copy(right.data(), right_.pointer(), right_.bytes());
  machine_.synchronize();
  double loss = 0;
  for (const double chance : chances) loss -= std::log(std::max(chance, kLeastChance));
  return {loss / static_cast<double>(examples_), std::accumulate(right.begin(), right.end(), 0.0)};
}

/// The share of correctly classified images of a data set, in [0, 1].
template <typename Machine>
double accuracy(Network<Machine>& network, const Dataset& dataset) {
  constexpr std::size_t kImages = 500;  // images per forward pass
  std::vector<std::uint32_t> indices(dataset.count());
  std::iota(indices.begin(), indices.end(), 0u);
  Examples examples;
  double right = 0;
  for (std::size_t first = 0; first < indices.size(); first += kImages) {
    const std::size_t count = std::min(kImages, indices.size() - first);
    dataset.read(std::span(indices).subspan(first, count), examples);
    network.forward(examples);
    right += network.result().right;
  }
  return right / static_cast<double>(dataset.count());
}

}  // namespace trainer
