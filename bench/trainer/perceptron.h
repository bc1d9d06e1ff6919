// A multi-layer perceptron with ReLU and softmax cross entropy, for one rank. It tells its caller
// about each gradient as soon as the backward pass is through with it.
#pragma once

#include "bench/trainer/dataset.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainer {

/// One matrix or vector that is learnt. `values` and `gradient` are `rows * columns` long, row
/// after row, and stay where they are as long as the network lives.
struct Parameter {
  std::string name;     // "layer1.weight", "layer1.bias", …; layer 1 reads the image
  std::size_t rows;     // outputs of the layer
  std::size_t columns;  // a weight: inputs of the layer; a bias: 1
  std::span<float> values;
  std::span<float> gradient;

  std::size_t count() const { return values.size(); }
};

/// Called when a parameter's gradient is final in this backward pass: last layer first, of each
/// layer the weight before the bias. Runs on the caller's thread, between two layers.
using GradientReady = std::function<void(const Parameter&)>;

/// All arithmetic runs on the caller's thread, and its result depends on the arguments alone: two
/// networks of the same widths and seed that see the same batches stay equal to the bit, whatever
/// else runs beside them. Several networks may compute at once, each on a thread of its own.
class Perceptron {
 public:
  /// `widths`: values an image, width of each hidden layer, classes. First weights after He et al.
  /// 2015 from `seed`, the same on all ranks; biases 0.
  /// Sets OpenBLAS to one thread a call, for the whole process.
  Perceptron(std::span<const std::size_t> widths, std::uint64_t seed);
  ~Perceptron();
  Perceptron(const Perceptron&) = delete;
  Perceptron& operator=(const Perceptron&) = delete;

  /// In the order of the layers, of each layer the weight before the bias.
  std::span<const Parameter> parameters() const;

  /// Writes all gradients of the mean loss over the images `batch` (indices into `dataset`), calls
  /// `ready` for each, and returns that loss. Every gradient is overwritten, never added to.
  double forward_backward(const Dataset& dataset, std::span<const std::uint32_t> batch,
                          const GradientReady& ready);

  /// The share of `dataset` that is classified right, in [0, 1].
  double accuracy(const Dataset& dataset);

 private:
  struct Layers;
  std::unique_ptr<Layers> layers_;
};

}  // namespace trainer
