// Labelled examples to learn from: random inputs, labelled by a random linear map of them that
// every rank knows, the teacher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace trainer_cuda {

/// Inputs row after row, and their labels.
struct Examples {
  std::vector<float> inputs;
  std::vector<std::uint32_t> labels;
};

std::vector<float> normal_values(std::size_t count, float deviation, std::mt19937& generator);

/// A source of batches without end, another one for each seed; the labels of equal inputs agree.
class Teacher {
 public:
  Teacher(std::size_t inputs, std::size_t classes, unsigned seed);

  Examples batch(std::size_t count);

 private:
  std::uint32_t label_of(const float* input) const;

  std::size_t inputs_, classes_;
  std::vector<float> scores_;  // a row of weights for each class
  std::mt19937 generator_;
};

}  // namespace trainer_cuda
