// Products of whole matrices: Eigen calls OpenBLAS on the caller's thread. All matrices are
// row-major. W has a row per output of the layer, X has a row per example, and D = dLoss/dZ.
#include "bench/train/trainer/network.h"

#include <cblas.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
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

Eigen::Map<Matrix> matrix(const tersor::ValueSpan& values, std::size_t rows, std::size_t columns) {
  return matrix(values.as<float>().data(), rows, columns);
}

/// Replaces the scores by D of the mean loss.
BatchResult softmax_loss(Eigen::Map<Matrix> scores, const std::vector<std::uint32_t>& labels) {
  constexpr double kMinProbability = 1e-30;  // avoids an infinite logarithm
  const auto examples = static_cast<float>(labels.size());
  BatchResult result;
  for (Eigen::Index example = 0; example < scores.rows(); ++example) {
    const std::uint32_t label = labels[static_cast<std::size_t>(example)];
    auto row = scores.row(example);
    Eigen::Index best = 0;
    row.array() = (row.array() - row.maxCoeff(&best)).exp();
    row /= row.sum();
    result.correct += best == label;
    result.loss -= std::log(std::max<double>(row[label], kMinProbability)) / examples;
    row[label] -= 1;
    row /= examples;
  }
  return result;
}

}  // namespace

Network::Network(std::span<const std::size_t> widths, std::uint64_t seed) {
  if (widths.size() < 2) throw std::invalid_argument("a network needs at least two widths");
  openblas_set_num_threads(1);
  std::mt19937_64 engine(seed);
  for (std::size_t i = 1; i < widths.size(); ++i) {
    const std::size_t inputs = widths[i - 1], outputs = widths[i];
    const float limit = std::sqrt(6.0f / static_cast<float>(inputs));  // variance 2 / inputs
    std::uniform_real_distribution<float> uniform(-limit, limit);
    std::vector<float> weights(outputs * inputs);
    for (float& value : weights) value = uniform(engine);
    const std::string name = "layer" + std::to_string(i);
    add_parameter(name + ".weight", outputs, inputs, std::move(weights));
    add_parameter(name + ".bias", outputs, 1, std::vector<float>(outputs));
    layers_.push_back({inputs, outputs});
  }
}

void Network::add_parameter(std::string name, std::size_t rows, std::size_t columns,
                            std::vector<float> values) {
  const std::vector<float> zeros(values.size());
  auto& stored = memory_.emplace_back(std::move(values));
  const tersor::ValueSpan span{std::span(stored)};
  const tersor::ValueSpan gradient{std::span(memory_.emplace_back(zeros))};
  parameters_.push_back({std::move(name), rows, columns, span, gradient});
  velocities_.push_back(zeros);
}

const float* Network::input_of(std::size_t layer) const {
  return (layer == 0 ? examples_->inputs : layers_[layer - 1].output).data();
}

BatchResult Network::forward(const Examples& examples) {
  const std::size_t width = layers_.front().inputs, count = examples.count();
  if (examples.inputs.size() != count * width)
    throw std::invalid_argument("the network reads " + std::to_string(width) +
                                " values an image, the data set has " +
                                std::to_string(examples.inputs.size() / count));
  examples_ = &examples;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto& [inputs, outputs, output, input_gradient] = layers_[i];
    output.resize(count * outputs);
    auto z = matrix(output.data(), count, outputs);
    z.noalias() = matrix(input_of(i), count, inputs) *
                  matrix(parameters_[2 * i].values, outputs, inputs).transpose();
    z.rowwise() += matrix(parameters_[2 * i + 1].values, 1, outputs).row(0);
    if (i + 1 < layers_.size()) z = z.cwiseMax(0.0f);
  }
  Layer& last = layers_.back();
  return softmax_loss(matrix(last.output.data(), count, last.outputs), examples.labels);
}

/// Computes a layer's gradients before D of the previous layer, so gradients can be sent during the
/// computation of D. Yields on shared cores: all ranks then pass through their layers at the same
/// time, like separate machines. Without the yield, some ranks would finish before others begin. A
/// collective over all ranks could then overlap only with the last ranks' backward pass.
void Network::backward(const GradientReady& ready) {
  const std::size_t count = examples_->count();
  const float* output_gradient = layers_.back().output.data();
  for (std::size_t i = layers_.size(); i-- > 0;) {
    auto& [inputs, outputs, output, input_gradient] = layers_[i];
    const Parameter &weight = parameters_[2 * i], &bias = parameters_[2 * i + 1];
    const auto d = matrix(output_gradient, count, outputs), x = matrix(input_of(i), count, inputs);
    matrix(weight.gradient, outputs, inputs).noalias() = d.transpose() * x;
    ready(weight);
    matrix(bias.gradient, 1, outputs) = d.colwise().sum();
    ready(bias);
    if (i == 0) return;
    std::this_thread::yield();
    input_gradient.resize(count * inputs);
    auto d_input = matrix(input_gradient.data(), count, inputs);
    d_input.noalias() = d * matrix(weight.values, outputs, inputs);
    d_input = (x.array() > 0.0f).select(d_input, 0.0f);
    output_gradient = input_gradient.data();
  }
}

void Network::descend(float rate, float momentum) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto velocity = matrix(velocities_[i].data(), 1, parameters_[i].count());
    velocity = momentum * velocity + matrix(parameters_[i].gradient, 1, parameters_[i].count());
    matrix(parameters_[i].values, 1, parameters_[i].count()) -= rate * velocity;
  }
}

double accuracy(Network& network, const Dataset& dataset) {
  constexpr std::size_t kImages = 500;  // images per forward pass
  std::vector<std::uint32_t> indices(dataset.count());
  std::iota(indices.begin(), indices.end(), 0u);
  Examples examples;
  std::size_t correct = 0;
  for (std::size_t first = 0; first < indices.size(); first += kImages) {
    const std::size_t count = std::min(kImages, indices.size() - first);
    dataset.read(std::span(indices).subspan(first, count), examples);
    correct += network.forward(examples).correct;
  }
  return static_cast<double>(correct) / static_cast<double>(dataset.count());
}

}  // namespace trainer
