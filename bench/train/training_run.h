// Trainings of the perceptron on several ranks, each with one codec for all gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/ranks/fleet.h"
#include "bench/train/trainer/dataset.h"
#include "bench/train/trainer/network.h"
#include "bench/train/trainer/recipe.h"

namespace tersor::bench {

/// The codec, seed and recipe of a training.
struct TrainingRun {
  std::string codec;
  std::uint64_t seed = 1;
  trainer::TrainingRecipe recipe;
};

/// Results of one epoch. Times are per step, as means over steps and ranks. Bytes are sent bytes
/// per rank and step, also as means.
struct EpochResult {
  std::size_t epoch = 0;  ///< from 1
  /// training time from the start to the end of this epoch, without evaluation
  double seconds = 0;
  double accuracy = 0;  ///< share of correct test images, from 0 to 1
  double loss = 0;      ///< mean over the epoch's batches of all ranks
  double wire_bytes = 0;
  double step_seconds = 0;
  double compute_seconds = 0;  ///< step_seconds minus exposed_seconds
  double encode_seconds = 0;
  double wire_seconds = 0;  ///< time with at least one message under way
  double decode_seconds = 0;
  double exposed_seconds = 0;  ///< time in which the trainer waited for gradients
};

/// Callbacks during a run, on rank 0's thread. All may be empty.
struct TrainingObserver {
  std::function<void()> step;
  std::function<void(const TrainingRun&, const EpochResult&)> epoch;
  /// Called in each epoch's last step with rank 0's gradients, before the reduction.
  std::function<void(const trainer::Parameter&)> gradient;
};

/// The epochs of a run.
using Epochs = std::vector<EpochResult>;

/// The number of steps of all epochs.
std::size_t total_steps(const TrainingRun& run, const trainer::TrainingData& data, int ranks);

/// Trains the runs in turns, one epoch of each run at a time, and returns the epochs of each run.
/// Other work on the machine therefore slows all runs alike. The results equal the results of
/// separate trainings. All runs need the same number of epochs. All ranks must end with equal
/// weights. Throws Error otherwise, and the reducer's exceptions.
std::vector<Epochs> train(Fleet& fleet, const std::vector<TrainingRun>& runs,
                          const trainer::TrainingData& data, const TrainingObserver& observer);

}  // namespace tersor::bench
