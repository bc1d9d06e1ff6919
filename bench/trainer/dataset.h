// Labelled images as bytes, and where to find Fashion-MNIST.
#pragma once

#include "bench/trainer/examples.h"
#include "bench/trainer/idx.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace trainer {

/// How pixels become inputs of a network: (pixel - mean) * scale.
struct Standardisation {
  float mean = 0.0f;
  float scale = 1.0f;
};

/// Images and their labels. Read-only once loaded, so that all ranks share one.
struct Dataset {
  std::size_t pixels = 0;            // values an image
  std::vector<std::uint8_t> images;  // count() * pixels
  std::vector<std::uint8_t> labels;  // count(), each below `classes`
  std::size_t classes = 0;
  Standardisation standardisation;  // of the training images, for the test images too

  std::size_t count() const { return labels.size(); }

  /// Writes image `index`, standardised, to `inputs` (`pixels` values).
  void standardise(std::size_t index, std::span<float> inputs) const;
  /// Makes `examples` those images, standardised.
  void read(std::span<const std::uint32_t> indices, Examples& examples) const;
};

/// 60,000 training and 10,000 test images of 28 * 28 pixels in ten classes (Xiao, Rasul and
/// Vollgraf 2017), or any other set in the same four files.
struct TrainingData {
  Dataset train;
  Dataset test;
};

/// Where the Debian package dataset-fashion-mnist puts its files.
inline constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";

/// Reads {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] from `folder`.
/// Throws DatasetError where a file is missing or damaged or they do not belong together; the
/// message says how to get good ones.
TrainingData load_training_data(const std::filesystem::path& folder = kFashionMnistFolder);

}  // namespace trainer
