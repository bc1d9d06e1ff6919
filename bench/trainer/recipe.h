// What `tersor-bench train` trains and how: the network, the schedule, and why they are so.
//
// The network is not the product. It has to be real (Fashion-MNIST, above 88 %), small enough for
// four ranks on two cores, and honest about communication:
// - Several hidden layers of comparable size, so that gradients get ready one after the other, last
//   layer first, and can travel while the rest is computed. Only what the first layer sends cannot
//   hide, for it is ready last; so that layer is narrow: 784 * 128 of 449,546 values, 22 %.
// - 1.8 MB of gradients: at 1 Gbit/s four ranks need 2 * 3/4 * 1.8 MB, 21.6 ms a step, for f32 and
//   5.4 ms for int8. With 128 images a rank the four ranks' forward and backward pass take 7 ms on
//   two cores of a Zen 5 (3.5 ms one rank alone), 4 ms of them between the first gradient and the
//   last. So f32 spends most of a step on the wire, and int8 can hide much of it.
// - Momentum 0.5, rate 0.15. In simulations of four ranks, momentum 0.9 with a rate of 0.04 gave
//   f32 0.3 points more, but left top-k of 1 % with feedback 1.3 points behind f32 (two seeds);
//   with 0.5 they are level (three seeds). A residual is sent many steps late, and long momentum
//   seems to add to that.
#pragma once

#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

namespace trainer {

struct TrainingRecipe {
  std::vector<std::size_t> hidden_widths = {128, 384, 384, 384};
  std::size_t batch_images = 128;  // a rank and step
  std::size_t epochs = 10;
  float learning_rate = 0.15f;  // the highest
  float momentum = 0.5f;
  double warmup_epochs = 1;

  /// The learning rate of `step`, counted from 0 over all epochs: a straight line up to
  /// `learning_rate` during the first `warmup_epochs`, half a cosine down to 0 (Loshchilov and
  /// Hutter 2017) until the end of the last epoch.
  float learning_rate_at(std::size_t step, std::size_t steps_per_epoch) const {
    const double epoch = (static_cast<double>(step) + 0.5) / static_cast<double>(steps_per_epoch);
    if (epoch < warmup_epochs) return static_cast<float>(learning_rate * epoch / warmup_epochs);
    const double done = (epoch - warmup_epochs) / (static_cast<double>(epochs) - warmup_epochs);
    return static_cast<float>(learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * done)));
  }
};

}  // namespace trainer
