// Labelled examples for training: random inputs, labelled by the teacher, a random linear map known
// to every rank.
#pragma once

#include "bench/train/trainer/examples.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace trainer {

/// An endless source of batches, different for each seed. Equal inputs have equal labels.
class Teacher {
 public:
  Teacher(std::size_t inputs, std::size_t classes, unsigned seed);

  Examples batch(std::size_t count);

 private:
  std::uint32_t label_of(const float* input) const;

  std::size_t inputs_, classes_;
  std::vector<float> scores_;  // one row of weights per class
  std::mt19937 generator_;
};

}  // namespace trainer
