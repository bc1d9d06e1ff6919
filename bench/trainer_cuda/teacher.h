// Labelled examples to learn from: random inputs, labelled by a random linear map of them that
// every rank knows, the teacher.
#pragma once

#include "bench/trainer/examples.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace trainer {

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

}  // namespace trainer
