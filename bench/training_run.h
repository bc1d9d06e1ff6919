// One training of the perceptron on several ranks, its gradients reduced by one codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/fleet.h"
#include "bench/trainer/dataset.h"
#include "bench/trainer/network.h"
#include "bench/trainer/recipe.h"

namespace tersor::bench {

/// What is trained, and how its gradients travel.
struct TrainingRun {
  std::string codec;
  std::uint64_t seed = 1;
  trainer::TrainingRecipe recipe;
};

/// One epoch. Times are for one step, the mean over steps and ranks; bytes are what one rank sent
/// in a step, the mean over both.
struct EpochResult {
  std::size_t epoch = 0;  ///< from 1
  double seconds = 0;     ///< of training, from its start to the end of this epoch; no evaluation
  double accuracy = 0;    ///< on the test images, of 1
  double loss = 0;        ///< mean over the epoch's batches of all ranks
  double wire_bytes = 0;
  double step_seconds = 0;
  double compute_seconds = 0;  ///< step less exposed
  double encode_seconds = 0;
  double wire_seconds = 0;  ///< in which at least one message was under way
  double decode_seconds = 0;
  double exposed_seconds = 0;  ///< in which the trainer waited for gradients
};

/// What a run tells while it goes on, on rank 0's thread. All may be empty.
struct TrainingObserver {
  std::function<void()> step;
  std::function<void(const EpochResult&)> epoch;
  /// Of each epoch's last step: rank 0's own gradients, before they are reduced.
  std::function<void(const trainer::Parameter&)> gradient;
};

/// Steps of all epochs.
std::size_t total_steps(const TrainingRun& run, const trainer::TrainingData& data, int ranks);

/// Trains, and returns the epochs. All ranks see the same seed and end with the same weights; Error
/// where they do not. Throws what the reducer throws.
std::vector<EpochResult> train(Fleet& fleet, const TrainingRun& run,
                               const trainer::TrainingData& data, const TrainingObserver& observer);

}  // namespace tersor::bench
