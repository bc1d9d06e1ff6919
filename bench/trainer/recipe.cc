// The schedule of the learning rate.
#include "bench/trainer/recipe.h"

#include <cmath>
#include <numbers>

namespace trainer {

float TrainingRecipe::learning_rate_at(std::size_t step, std::size_t steps_per_epoch) const {
  const double epoch = (static_cast<double>(step) + 0.5) / static_cast<double>(steps_per_epoch);
  if (epoch < warmup_epochs) return static_cast<float>(learning_rate * epoch / warmup_epochs);
  const double done = (epoch - warmup_epochs) / (static_cast<double>(epochs) - warmup_epochs);
  return static_cast<float>(learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * done)));
}

}  // namespace trainer
