// Labelled images as bytes, and the location of Fashion-MNIST.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace trainer {

/// The unsigned bytes of an IDX file, the format of MNIST and successors: a big-endian header, then
/// bytes. The last dimension varies fastest.
struct IdxArray {
  std::vector<std::size_t> dimensions;
  std::vector<std::uint8_t> values;
};

/// Reads unsigned bytes in `dimensions` dimensions from `path`. The file may be compressed with
/// gzip. Throws tersor::Error if the file cannot be read, has another type, or has another length
/// than the header states. A damaged gzip stream fails by the stream's checksum. The message names
/// the file and explains how to get a correct file.
IdxArray read_idx(const std::filesystem::path& path, std::size_t dimensions);

/// Row-major inputs with labels.
struct Examples {
  std::vector<float> inputs;
  std::vector<std::uint32_t> labels;

  std::size_t count() const { return labels.size(); }
};

/// Images and labels. Read-only after loading, so all ranks share a single Dataset.
struct Dataset {
  std::size_t pixels = 0;            // values per image
  std::vector<std::uint8_t> images;  // count() * pixels
  std::vector<std::uint8_t> labels;  // count(), each below `classes`
  std::size_t classes = 0;
  float mean = 0, scale = 1;  // of the training images, also for the test images

  std::size_t count() const { return labels.size(); }

  /// Fills `examples` with these images, standardised: (pixel - mean) * scale.
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

/// Reads {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] from `folder`. Throws tersor::Error if a
/// file is missing or damaged, or if files do not fit together. The message explains how to get
/// correct files.
TrainingData load_training_data(const std::filesystem::path& folder = kFashionMnistFolder);

}  // namespace trainer
