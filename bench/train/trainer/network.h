// A perceptron with any number of layers, ReLU and softmax cross entropy, on the caller's thread.
// Results depend only on the arguments. The backward pass reports each gradient to the caller as
// soon as the gradient is final.
#pragma once

#include "bench/train/trainer/dataset.h"

#include <tersor/span.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace trainer {

/// A trainable row-major matrix or bias. Lives as long as the network.
struct Parameter {
  std::string name;           ///< "layer1.weight", "layer1.bias", …; layer 1 reads the examples
  std::size_t rows, columns;  ///< outputs and inputs of the layer; a bias has one column
  tersor::ValueSpan values, gradient;

  std::size_t count() const { return rows * columns; }
};

/// Called when a parameter's gradient is final in this backward pass. The last layer comes first;
/// within a layer, the weight precedes the bias.
using GradientReady = std::function<void(const Parameter&)>;

/// The result of a forward pass.
struct BatchResult {
  double loss = 0;          ///< mean over the examples
  std::size_t correct = 0;  ///< number of examples whose label has the highest score
};

class Network {
 public:
  /// `widths`: inputs, each hidden layer, classes. Draws initial weights after He, Zhang, Ren and
  /// Sun 2015 from `seed`, equal on all ranks. Biases are 0. Sets OpenBLAS to one thread per call
  /// for the whole process.
  Network(std::span<const std::size_t> widths, std::uint64_t seed);

  /// Weight and bias of each layer, in the order of layers.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  /// `examples` must stay valid until the end of the backward pass. Throws std::invalid_argument
  /// for inputs of another width.
  BatchResult forward(const Examples& examples);
  BatchResult forward(Examples&&) = delete;
  /// Overwrites every gradient.
  void backward(const GradientReady& ready);
  /// A step of gradient descent with momentum (Polyak 1964, as in PyTorch's SGD).
  void descend(float rate, float momentum);

 private:
  struct Layer {
    std::size_t inputs, outputs;
    std::vector<float> output = {};  // a row per example; D = dLoss/dZ after the last layer's loss
    std::vector<float> input_gradient = {};  // D of the previous layer
  };

  void add_parameter(std::string name, std::size_t rows, std::size_t columns,
                     std::vector<float> values);
  const float* input_of(std::size_t layer) const;

  std::vector<Layer> layers_;
  std::vector<Parameter> parameters_;
  std::vector<std::vector<float>> memory_;      // values and gradients
  std::vector<std::vector<float>> velocities_;  // one per parameter
  const Examples* examples_ = nullptr;
};

/// The share of correctly classified images of a data set, in [0, 1].
double accuracy(Network& network, const Dataset& dataset);

}  // namespace trainer
