// The network's arithmetic: matrices by Eigen, their products by OpenBLAS on the caller's thread.
//
// Rows are images everywhere. Layer l turns inputs X (images × inputs) into Z = X Wᵀ + b; all but
// the last then take max(Z, 0). Backward, with D = dLoss/dZ of a layer:
//   weight gradient Dᵀ X, bias gradient the column sums of D, and D of the layer below
//   (D W) where its output was above 0.
#include "bench/trainer/perceptron.h"

#include "bench/trainer/random.h"

#include <cblas.h>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <thread>

namespace trainer {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixView = Eigen::Map<Matrix>;
using RowView = Eigen::Map<Eigen::RowVectorXf>;

constexpr std::size_t kEvaluationImages = 500;  // classified at once when accuracy is measured

MatrixView matrix(const Parameter& parameter, std::span<float> values) {
  return {values.data(), static_cast<Eigen::Index>(parameter.rows),
          static_cast<Eigen::Index>(parameter.columns)};
}

RowView row(std::span<float> values) {
  return {values.data(), static_cast<Eigen::Index>(values.size())};
}

/// He, Zhang, Ren and Sun 2015: variance 2 / inputs, here uniform.
void draw_first_weights(const Parameter& weight, Random& random) {
  const float limit = std::sqrt(6.0f / static_cast<float>(weight.columns));
  for (float& value : weight.values) value = random.symmetric() * limit;
}

/// One image: `scores` becomes softmax(scores) - onehot(label); returns the cross entropy.
double softmax_loss(Matrix::RowXpr scores, std::size_t label) {
  scores.array() -= scores.maxCoeff();
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score);
  scores /= sum;
  const double loss = -std::log(std::max(static_cast<double>(scores[label]), 1e-30));
  scores[label] -= 1.0f;
  return loss;
}

}  // namespace

/// What a network owns. `outputs[l]` are the activations of layer l, `outputs[0]` the images;
/// `deltas[l]` is dLoss/dZ of layer l.
struct Perceptron::Layers {
  Eigen::VectorXf values;
  Eigen::VectorXf gradients;
  std::vector<Parameter> parameters;  // weight of layer l at 2(l - 1), bias behind it
  std::vector<Matrix> outputs;
  std::vector<Matrix> deltas;

  std::size_t last() const { return outputs.size() - 1; }
  const Parameter& weight(std::size_t layer) const { return parameters[2 * layer - 2]; }
  const Parameter& bias(std::size_t layer) const { return parameters[2 * layer - 1]; }

  void add_parameter(std::string name, std::size_t rows, std::size_t columns);
  void place_parameters();
  template <typename ImageOf>
  void read(const Dataset& dataset, std::size_t images, ImageOf image_of);
  void forward();
  double start_backward(const Dataset& dataset, std::span<const std::uint32_t> batch);
  void backward(std::size_t layer, const GradientReady& ready);
};

void Perceptron::Layers::add_parameter(std::string name, std::size_t rows, std::size_t columns) {
  parameters.push_back({std::move(name), rows, columns, {}, {}});
}

/// All values in one allocation, all gradients in another, each parameter at a cache line.
void Perceptron::Layers::place_parameters() {
  constexpr std::size_t kLine = 16;  // values
  std::size_t total = 0;
  for (const Parameter& p : parameters) total += (p.rows * p.columns + kLine - 1) / kLine * kLine;
  values.setZero(static_cast<Eigen::Index>(total));
  gradients.setZero(static_cast<Eigen::Index>(total));
  std::size_t first = 0;
  for (Parameter& p : parameters) {
    const std::size_t count = p.rows * p.columns;
    p.values = {values.data() + first, count};
    p.gradient = {gradients.data() + first, count};
    first += (count + kLine - 1) / kLine * kLine;
  }
}

template <typename ImageOf>
void Perceptron::Layers::read(const Dataset& dataset, std::size_t images, ImageOf image_of) {
  if (dataset.pixels != weight(1).columns)
    throw std::invalid_argument("the network reads " + std::to_string(weight(1).columns) +
                                " values an image, the data set has " +
                                std::to_string(dataset.pixels));
  outputs[0].resize(static_cast<Eigen::Index>(images), static_cast<Eigen::Index>(dataset.pixels));
  for (std::size_t i = 0; i < images; ++i)
    dataset.standardise(image_of(i), {outputs[0].row(i).data(), dataset.pixels});
}

void Perceptron::Layers::forward() {
  for (std::size_t layer = 1; layer <= last(); ++layer) {
    Matrix& out = outputs[layer];
    out.noalias() = outputs[layer - 1] * matrix(weight(layer), weight(layer).values).transpose();
    out.rowwise() += row(bias(layer).values);
    if (layer < last()) out = out.cwiseMax(0.0f);
  }
}

/// Turns the last layer's scores into its delta; returns the mean loss.
double Perceptron::Layers::start_backward(const Dataset& dataset,
                                          std::span<const std::uint32_t> batch) {
  Matrix& delta = deltas[last()] = outputs[last()];
  double loss = 0;
  for (std::size_t i = 0; i < batch.size(); ++i)
    loss += softmax_loss(delta.row(i), dataset.labels[batch[i]]);
  delta /= static_cast<float>(batch.size());
  return loss / static_cast<double>(batch.size());
}

/// The gradients come first and the layer below's delta after them: what is ready can be sent while
/// that is computed. Ranks that share cores then give way, so that they go through their layers
/// side by side, as machines of their own would; else some are through before others begin, and a
/// collective over all of them has only the last ones' backward pass to hide behind.
void Perceptron::Layers::backward(std::size_t layer, const GradientReady& ready) {
  const Matrix& delta = deltas[layer];
  matrix(weight(layer), weight(layer).gradient).noalias() = delta.transpose() * outputs[layer - 1];
  ready(weight(layer));
  row(bias(layer).gradient) = delta.colwise().sum();
  ready(bias(layer));
  if (layer == 1) return;
  std::this_thread::yield();
  Matrix& below = deltas[layer - 1];
  below.noalias() = delta * matrix(weight(layer), weight(layer).values);
  below = (outputs[layer - 1].array() > 0.0f).select(below, 0.0f);
}

Perceptron::Perceptron(std::span<const std::size_t> widths, std::uint64_t seed)
    : layers_(std::make_unique<Layers>()) {
  if (widths.size() < 2) throw std::invalid_argument("a network needs at least two widths");
  openblas_set_num_threads(1);
  layers_->outputs.resize(widths.size());
  layers_->deltas.resize(widths.size());
  for (std::size_t layer = 1; layer < widths.size(); ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    layers_->add_parameter(name + ".weight", widths[layer], widths[layer - 1]);
    layers_->add_parameter(name + ".bias", widths[layer], 1);
  }
  layers_->place_parameters();
  Random random({seed});
  for (std::size_t layer = 1; layer < widths.size(); ++layer)
    draw_first_weights(layers_->weight(layer), random);
}

Perceptron::~Perceptron() = default;

std::span<const Parameter> Perceptron::parameters() const { return layers_->parameters; }

double Perceptron::forward_backward(const Dataset& dataset, std::span<const std::uint32_t> batch,
                                    const GradientReady& ready) {
  layers_->read(dataset, batch.size(), [&](std::size_t i) { return batch[i]; });
  layers_->forward();
  const double loss = layers_->start_backward(dataset, batch);
  for (std::size_t layer = layers_->last(); layer >= 1; --layer) layers_->backward(layer, ready);
  return loss;
}

double Perceptron::accuracy(const Dataset& dataset) {
  std::size_t right = 0;
  for (std::size_t first = 0; first < dataset.count(); first += kEvaluationImages) {
    const std::size_t images = std::min(kEvaluationImages, dataset.count() - first);
    layers_->read(dataset, images, [&](std::size_t i) { return first + i; });
    layers_->forward();
    for (std::size_t i = 0; i < images; ++i) {
      Eigen::Index best = 0;
      layers_->outputs.back().row(i).maxCoeff(&best);
      right += static_cast<std::size_t>(best) == dataset.labels[first + i];
    }
  }
  return static_cast<double>(right) / static_cast<double>(dataset.count());
}

}  // namespace trainer
