// Labelled images as bytes, and the location of Fashion-MNIST.
#pragma once

#include "bench/train/trainer/examples.h"
#include "bench/train/trainer/idx.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace trainer {

/// Converts pixels to a network's inputs: (pixel - mean) * scale.
struct Standardisation {
  float mean = 0.0f;
  float scale = 1.0f;
};

/// Images and labels. Read-only after loading, so all ranks share a single Dataset.
struct Dataset {
  std::size_t pixels = 0;            // values per image
  std::vector<std::uint8_t> images;  // count() * pixels
  std::vector<std::uint8_t> labels;  // count(), each below `classes`
  std::size_t classes = 0;
  Standardisation standardisation;  // from the training images, also for the test images

  std::size_t count() const { return labels.size(); }

  /// Writes image `index`, standardised, to `inputs` (`pixels` values).
  void standardise(std::size_t index, std::span<float> inputs) const;
  /// Fills `examples` with these images, standardised.
  void read(std::span<const std::uint32_t> indices, Examples& examples) const;
};

/// 60,000 training and 10,000 test images of 28 * 28 pixels in ten classes (Xiao, Rasul and
/// Vollgraf 2017), or another set in the same four files.
struct TrainingData {
  Dataset train;
  Dataset test;
};

/// The folder of the Debian package dataset-fashion-mnist.
inline constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";

/// Reads {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] from `folder`. Throws DatasetError if a
/// file is missing or damaged, or if files do not fit together. The message explains how to get
/// correct files.
TrainingData load_training_data(const std::filesystem::path& folder = kFashionMnistFolder);

}  // namespace trainer
