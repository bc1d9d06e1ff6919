
#include "bench/train/cuda/teacher.h"

namespace trainer {
namespace {

constexpr unsigned kTeacherSeed = 7;

std::vector<float> normal_values(std::size_t count, std::mt19937& generator) {
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) value = distribution(generator);
  return values;
}

}  // namespace

Teacher::Teacher(std::size_t inputs, std::size_t classes, unsigned seed)
    : inputs_(inputs), classes_(classes), generator_(seed) {
  std::mt19937 same(kTeacherSeed);
  scores_ = normal_values(classes * inputs, same);
}

Examples Teacher::batch(std::size_t count) {
  Examples examples{normal_values(count * inputs_, generator_), {}};
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

}  // namespace trainer
