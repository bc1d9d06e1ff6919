// The model of both trainers: a perceptron with a hidden layer, trained on the classes of a random
// linear map. Each rank has different examples.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

constexpr std::size_t kInputs = 64, kHidden = 128, kClasses = 10;
constexpr int kExamples = 256;  // of a rank
constexpr int kSteps = 60;
constexpr float kRate = 0.5f;

using Vector = std::vector<float>;

inline Vector random_values(std::size_t count, float deviation, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0, deviation);
  Vector values(count);
  for (float& value : values) value = distribution(generator);
  return values;
}

// A matrix of rows × columns and its gradient.
struct Layer {
  Layer(std::string layer_name, std::size_t row_count, std::size_t column_count, unsigned seed)
      : name(std::move(layer_name)),
        rows(row_count),
        columns(column_count),
        weight(random_values(rows * columns, std::sqrt(2.0f / columns), seed)),
        gradient(rows * columns) {}

  Vector times(std::span<const float> input) const {
    Vector output(rows);
    for (std::size_t i = 0; i < rows * columns; ++i) {
      output[i / columns] += weight[i] * input[i % columns];
    }
    return output;
  }

  // Adds an example's contribution to the gradient. Returns the gradient of the input.
  Vector backward(std::span<const float> input, std::span<const float> output_gradient) {
    Vector input_gradient(columns);
    for (std::size_t i = 0; i < rows * columns; ++i) {
      gradient[i] += output_gradient[i / columns] * input[i % columns] / kExamples;
      input_gradient[i % columns] += output_gradient[i / columns] * weight[i];
    }
    return input_gradient;
  }

  void descend() {
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] -= kRate * gradient[i];
    std::ranges::fill(gradient, 0.0f);
  }

  std::string name;
  std::size_t rows, columns;
  Vector weight, gradient;
};

struct Example {
  Vector input;
  std::size_t label;
};

inline std::vector<Example> make_examples(int rank) {
  const Layer teacher("teacher", kClasses, kInputs, 1);
  std::vector<Example> examples;
  for (int i = 0; i < kExamples; ++i) {
    Vector input = random_values(kInputs, 1, 1000 + rank * kExamples + i);
    const Vector scores = teacher.times(input);
    examples.push_back({std::move(input), static_cast<std::size_t>(
                                              std::ranges::max_element(scores) - scores.begin())});
  }
  return examples;
}

inline void softmax(Vector& scores) {
  const float highest = *std::ranges::max_element(scores);
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score - highest);
  for (float& score : scores) score /= sum;
}

// Forward and backward pass of an example. Returns the loss.
inline double learn(std::vector<Layer>& layers, const Example& example) {
  Vector hidden = layers[0].times(example.input);
  for (float& value : hidden) value = std::max(value, 0.0f);
  Vector output = layers[1].times(hidden);
  softmax(output);
  const double loss = -std::log(output[example.label]);
  output[example.label] -= 1;
  Vector hidden_gradient = layers[1].backward(hidden, output);
  for (std::size_t i = 0; i < kHidden; ++i) hidden_gradient[i] *= hidden[i] > 0;
  layers[0].backward(example.input, hidden_gradient);
  return loss / kExamples;
}

inline double mean_over_ranks(double value, MPI_Comm communicator) {
  int ranks = 0;
  MPI_Comm_size(communicator, &ranks);
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, communicator);
  return value / ranks;
}
