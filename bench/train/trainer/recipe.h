// The network and the schedule of `tersor-bench train`, with reasons.
//
// The network must be realistic (Fashion-MNIST, above 88 %) and small enough for four ranks on two
// cores. The communication must resemble real training.
//
// Several hidden layers have comparable sizes. Gradients become ready successively, last layer
// first, and can be sent during the remaining computation. The first layer's gradient is ready last
// and cannot overlap. The first layer is therefore narrow: 784 * 128 of 449,546 values, 22 %.
//
// The gradients have 1.8 MB. Four ranks at 1 Gbit/s send 2 * 3/4 * 1.8 MB per step. The transfer
// takes 21.6 ms for f32 and 5.4 ms for int8. A step has 128 images per rank. The forward and
// backward passes of all four ranks take 7 ms on two cores of a Zen 5 (3.5 ms for a single rank
// alone). The time from the first to the last gradient is 4 ms. f32 therefore spends most of a step
// on the wire, and int8 can hide much of the communication.
//
// Momentum is 0.5 and the learning rate 0.15. Momentum 0.9 with rate 0.04 was simulated on four
// ranks with two seeds. The accuracy of f32 rose by 0.3 points, but top-k of 1 % with feedback
// stayed 1.3 points behind f32. Momentum 0.5 gives equal accuracy (three seeds). A residual is sent
// many steps late, and long momentum seems to add to this delay.
#pragma once

#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

namespace trainer {

struct TrainingRecipe {
  std::vector<std::size_t> hidden_widths = {128, 384, 384, 384};
  std::size_t batch_images = 128;  // per rank and step
  std::size_t epochs = 10;
  float learning_rate = 0.15f;  // maximum
  float momentum = 0.5f;
  double warmup_epochs = 1;

  /// Inputs, each hidden layer, classes.
  std::vector<std::size_t> widths(std::size_t inputs, std::size_t classes) const {
    std::vector<std::size_t> all = {inputs};
    all.insert(all.end(), hidden_widths.begin(), hidden_widths.end());
    all.push_back(classes);
    return all;
  }

  /// Returns the learning rate of `step`, counted from 0 over all epochs. The rate rises linearly
  /// to `learning_rate` during the first `warmup_epochs`. A half cosine (Loshchilov and Hutter
  /// 2017) then lowers the rate to 0 at the end of the last epoch.
  float learning_rate_at(std::size_t step, std::size_t steps_per_epoch) const {
    const double epoch = (static_cast<double>(step) + 0.5) / static_cast<double>(steps_per_epoch);
    if (epoch < warmup_epochs) return static_cast<float>(learning_rate * epoch / warmup_epochs);
    const double done = (epoch - warmup_epochs) / (static_cast<double>(epochs) - warmup_epochs);
    return static_cast<float>(learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * done)));
  }
};

}  // namespace trainer
