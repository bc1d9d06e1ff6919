// A perceptron of any number of layers on one machine. It tells its caller about each gradient as
// soon as the backward pass is through with it.
#pragma once

#include "bench/trainer_cuda/examples.h"
#include "bench/trainer_cuda/machine.h"

#include <tersor/buffer.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace trainer_cuda {

/// A matrix (or a bias: one column) that is learnt, in the machine's memory.
struct Parameter {
  std::string name;
  std::size_t rows, columns;
  tersor::ValueSpan values, gradient;

  std::size_t count() const { return rows * columns; }
};

/// What a batch came to.
struct BatchResult {
  double loss = 0;      ///< mean over its examples
  double accuracy = 0;  ///< share of examples whose label had the highest score
};

template <typename Machine>
class Network {
 public:
  /// `widths`: inputs, each hidden layer, classes. First weights after He et al. 2015 from `seed`,
  /// the same on all ranks. `batch` examples at a time.
  Network(const Machine& machine, const std::vector<std::size_t>& widths, std::size_t batch,
          unsigned seed);

  /// Weight and bias of each layer, in the order of layers.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  /// Queues what a batch costs, forwards. `result` tells what came of it.
  void forward(const Examples& batch);
  /// Queues the backward pass. A gradient is queued when `ready` is called for it, last layer
  /// first.
  void backward(const std::function<void(const Parameter&)>& ready);
  /// Queues a step against the gradients.
  void descend(float rate);
  /// Waits for the last forward pass. The machine's only wait.
  BatchResult result();

 private:
  struct Layer {
    LayerSizes sizes;
    Parameter weight, bias;
    tersor::Buffer output, below;  // below: D of the layer before
  };

  tersor::Buffer make(std::size_t count) const {
    return tersor::Buffer(count * sizeof(float), Machine::kMemory);
  }
  static float* floats(const tersor::Buffer& buffer) {
    return reinterpret_cast<float*>(buffer.pointer());
  }
  static float* floats(const tersor::ValueSpan& span) {
    return reinterpret_cast<float*>(span.pointer());
  }
  Parameter make_parameter(std::string name, std::size_t rows, std::size_t columns);
  void set(const Parameter& parameter, const std::vector<float>& values);
  const float* input_of(std::size_t layer) const {
    return floats(layer == 0 ? input_ : layers_[layer - 1].output);
  }

  const Machine& machine_;
  std::size_t batch_;
  std::vector<tersor::Buffer> memory_;
  std::vector<Layer> layers_;
  std::vector<Parameter> parameters_;
  tersor::Buffer input_, labels_, loss_, correct_;
};

template <typename Machine>
Network<Machine>::Network(const Machine& machine, const std::vector<std::size_t>& widths,
                          std::size_t batch, unsigned seed)
    : machine_(machine),
      batch_(batch),
      input_(make(batch * widths.front())),
      labels_(make(batch)),
      loss_(make(batch)),
      correct_(make(batch)) {
  std::mt19937 generator(seed);
  for (std::size_t i = 1; i < widths.size(); ++i) {
    const std::size_t inputs = widths[i - 1], outputs = widths[i];
    const std::string name = "layer" + std::to_string(i);
    layers_.push_back({{batch, inputs, outputs},
                       make_parameter(name + ".weight", outputs, inputs),
                       make_parameter(name + ".bias", outputs, 1),
                       make(batch * outputs),
                       make(batch * inputs)});
    const float deviation = std::sqrt(2.0f / static_cast<float>(inputs));
    set(layers_.back().weight, normal_values(outputs * inputs, deviation, generator));
    set(layers_.back().bias, std::vector<float>(outputs));
    parameters_.insert(parameters_.end(), {layers_.back().weight, layers_.back().bias});
  }
}

template <typename Machine>
Parameter Network<Machine>::make_parameter(std::string name, std::size_t rows,
                                           std::size_t columns) {
  const auto place = [&] {
    memory_.push_back(make(rows * columns));
    return tersor::ValueSpan(memory_.back().pointer(), rows * columns, tersor::Dtype::kF32,
                             Machine::kMemory);
  };
  const tersor::ValueSpan values = place(), gradient = place();
  return {std::move(name), rows, columns, values, gradient};
}

template <typename Machine>
void Network<Machine>::set(const Parameter& parameter, const std::vector<float>& values) {
  machine_.copy(parameter.values.pointer(), values.data(), parameter.values.bytes());
  machine_.synchronize();  // the values go away
}

template <typename Machine>
void Network<Machine>::forward(const Examples& batch) {
  machine_.copy(input_.pointer(), batch.inputs.data(), input_.bytes());
  machine_.copy(labels_.pointer(), batch.labels.data(), labels_.bytes());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const bool last = i + 1 == layers_.size();
    machine_.for_each(
        batch_ * layer.sizes.outputs,
        Forward{layer.sizes, input_of(i), floats(layer.weight.values), floats(layer.bias.values),
                floats(layer.output), last ? Activation::kNone : Activation::kRelu});
  }
  const Layer& last = layers_.back();
  machine_.for_each(batch_, SoftmaxLoss{batch_, last.sizes.outputs,
                                        reinterpret_cast<std::uint32_t*>(labels_.pointer()),
                                        floats(last.output), floats(loss_), floats(correct_)});
}

template <typename Machine>
void Network<Machine>::backward(const std::function<void(const Parameter&)>& ready) {
  const float* d = floats(layers_.back().output);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    machine_.for_each(layer.weight.count(),
                      WeightGradient{layer.sizes, d, input_of(i), floats(layer.weight.gradient)});
    ready(layer.weight);
    machine_.for_each(layer.bias.count(),
                      BiasGradient{layer.sizes, d, floats(layer.bias.gradient)});
    ready(layer.bias);
    if (i == 0) return;
    machine_.for_each(batch_ * layer.sizes.inputs,
                      InputGradient{layer.sizes, d, floats(layer.weight.values), input_of(i),
                                    floats(layer.below)});
    d = floats(layer.below);
  }
}

template <typename Machine>
void Network<Machine>::descend(float rate) {
  for (const Parameter& parameter : parameters_)
    machine_.for_each(parameter.count(),
                      Descend{rate, floats(parameter.gradient), floats(parameter.values)});
}

template <typename Machine>
BatchResult Network<Machine>::result() {
  std::vector<float> loss(batch_), correct(batch_);
  machine_.copy(loss.data(), loss_.pointer(), loss_.bytes());
  machine_.copy(correct.data(), correct_.pointer(), correct_.bytes());
  machine_.synchronize();
  const auto mean = [&](const std::vector<float>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(batch_);
  };
  return {mean(loss), mean(correct)};
}

}  // namespace trainer_cuda
