// Reads a training set and a test set from four IDX files.
#include "bench/train/trainer/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace trainer {
namespace {

constexpr std::size_t kClasses = 10;

/// Returns `name`, or `name` with ".gz" if only this file exists.
std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  std::filesystem::path plain = folder / name;
  std::filesystem::path gzipped = folder / (name + ".gz");
  std::error_code ignored;
  return std::filesystem::exists(plain, ignored) ? plain : gzipped;
}

[[noreturn]] void fail_dataset(const std::filesystem::path& folder, const std::string& cause) {
  throw DatasetError("the data set in " + folder.string() + " is damaged: " + cause +
                     ". Install the Debian package dataset-fashion-mnist again, or name another "
                     "folder with --data DIR");
}

void check(const Dataset& dataset, std::size_t images, const std::filesystem::path& folder) {
  if (dataset.count() == 0 || dataset.pixels == 0) fail_dataset(folder, "it holds no images");
  if (images != dataset.count())
    fail_dataset(folder, std::to_string(images) + " images, but " +
                             std::to_string(dataset.count()) + " labels");
  const std::size_t largest = *std::ranges::max_element(dataset.labels);
  if (largest >= kClasses)
    fail_dataset(folder, "a label is " + std::to_string(largest) + ", above 9");
}

Dataset load(const std::filesystem::path& folder, const std::string& prefix) {
  IdxArray images = read_idx(find_file(folder, prefix + "-images-idx3-ubyte"), 3);
  IdxArray labels = read_idx(find_file(folder, prefix + "-labels-idx1-ubyte"), 1);
  Dataset dataset{.pixels = images.dimensions[1] * images.dimensions[2],
                  .images = std::move(images.values),
                  .labels = std::move(labels.values),
                  .classes = kClasses,
                  .standardisation = {}};
  check(dataset, images.dimensions[0], folder);
  return dataset;
}

/// Mean and standard deviation over all pixels of all images, with exact sums in 64-bit integers.
Standardisation measure(std::span<const std::uint8_t> pixels) {
  std::array<std::uint64_t, 256> histogram{};
  for (const std::uint8_t pixel : pixels) ++histogram[pixel];
  double sum = 0, squares = 0;
  for (std::size_t value = 0; value < histogram.size(); ++value) {
    sum += static_cast<double>(histogram[value] * value);
    squares += static_cast<double>(histogram[value] * value * value);
  }
  const double mean = sum / static_cast<double>(pixels.size());
  const double variance = squares / static_cast<double>(pixels.size()) - mean * mean;
  return {static_cast<float>(mean), static_cast<float>(1 / std::sqrt(std::max(variance, 1.0)))};
}

}  // namespace

void Dataset::standardise(std::size_t index, std::span<float> inputs) const {
  const std::uint8_t* image = images.data() + index * pixels;
  const float scale = standardisation.scale, shift = -standardisation.mean * scale;
  for (std::size_t i = 0; i < pixels; ++i) inputs[i] = static_cast<float>(image[i]) * scale + shift;
}

void Dataset::read(std::span<const std::uint32_t> indices, Examples& examples) const {
  examples.inputs.resize(indices.size() * pixels);
  examples.labels.resize(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    standardise(indices[i], std::span(examples.inputs).subspan(i * pixels, pixels));
    examples.labels[i] = labels[indices[i]];
  }
}

TrainingData load_training_data(const std::filesystem::path& folder) {
  TrainingData sets{load(folder, "train"), load(folder, "t10k")};
  if (sets.train.pixels != sets.test.pixels)
    fail_dataset(folder, "training images have " + std::to_string(sets.train.pixels) +
                             " pixels, test images " + std::to_string(sets.test.pixels));
  sets.train.standardisation = measure(sets.train.images);
  sets.test.standardisation = sets.train.standardisation;
  return sets;
}

}  // namespace trainer
