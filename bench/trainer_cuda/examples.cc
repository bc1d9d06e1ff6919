// See examples.h.

#include "bench/trainer_cuda/examples.h"

namespace trainer_cuda {
namespace {

constexpr unsigned kTeacherSeed = 7;

}  // namespace

std::vector<float> normal_values(std::size_t count, float deviation, std::mt19937& generator) {
  std::normal_distribution<float> distribution(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(generator);
  return values;
}

Teacher::Teacher(std::size_t inputs, std::size_t classes, unsigned seed)
    : inputs_(inputs), classes_(classes), generator_(seed) {
  std::mt19937 same(kTeacherSeed);
  scores_ = normal_values(classes * inputs, 1, same);
}

Examples Teacher::batch(std::size_t count) {
  Examples examples{normal_values(count * inputs_, 1, generator_), {}};
  for (std::size_t i = 0; i < count; ++i)
    examples.labels.push_back(label_of(examples.inputs.data() + i * inputs_));
  return examples;
}

std::uint32_t Teacher::label_of(const float* input) const {
  std::uint32_t best = 0;
  float highest = 0;
  for (std::uint32_t c = 0; c < classes_; ++c) {
    float score = 0;
    for (std::size_t i = 0; i < inputs_; ++i) score += scores_[c * inputs_ + i] * input[i];
    if (c == 0 || score > highest) best = c, highest = score;
  }
  return best;
}

}  // namespace trainer_cuda
