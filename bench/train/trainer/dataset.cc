// Reads a training set and a test set from four IDX files with zlib. The gz functions of zlib also
// read uncompressed files.
#include "bench/train/trainer/dataset.h"

#include <fmt/format.h>
#include <tersor/error.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

namespace trainer {
namespace {

constexpr std::size_t kClasses = 10;
constexpr std::uint8_t kUnsignedByte = 0x08;             // the type code in an IDX header
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;  // limit for sizes in damaged headers

/// `of`: a file or folder.
[[noreturn]] void fail(const std::filesystem::path& of, const std::string& cause) {
  throw tersor::Error(
      fmt::format("{}: {}. Install the Debian package dataset-fashion-mnist, or name a folder that "
                  "holds the four IDX files with --data DIR",
                  of.string(), cause));
}

class GzipFile {
 public:
  explicit GzipFile(const std::filesystem::path& path)
      : path_(path), file_(gzopen(path.c_str(), "rb"), &gzclose) {
    if (file_ == nullptr) fail(path_, std::strerror(errno));
  }

  /// Fills `bytes` or fails.
  void read(std::span<std::uint8_t> bytes) {
    if (read_some(bytes) < bytes.size()) fail(path_, "ends too early");
  }

  /// Fails unless the file ends here. zlib compares the checksum at the end.
  void expect_end() {
    std::array<std::uint8_t, 1> beyond;
    if (read_some(beyond) != 0) fail(path_, "holds more bytes than its header says");
  }

 private:
  std::size_t read_some(std::span<std::uint8_t> bytes) {
    const std::size_t count = gzfread(bytes.data(), 1, bytes.size(), file_.get());
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) fail(path_, std::strerror(errno));
    if (code != Z_OK && code != Z_STREAM_END) fail(path_, fmt::format("is damaged: {}", message));
    return count;
  }

  const std::filesystem::path& path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

std::size_t read_big_endian(GzipFile& file) {
  std::array<std::uint8_t, 4> bytes;
  file.read(bytes);
  return std::size_t{bytes[0]} << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

/// Reads `name`, or `name` with ".gz" if only this file exists.
IdxArray read_from(const std::filesystem::path& folder, const std::string& name,
                   std::size_t dimensions) {
  std::error_code ignored;
  const bool plain = std::filesystem::exists(folder / name, ignored);
  return read_idx(folder / (plain ? name : name + ".gz"), dimensions);
}

Dataset load(const std::filesystem::path& folder, const std::string& prefix) {
  IdxArray images = read_from(folder, prefix + "-images-idx3-ubyte", 3);
  IdxArray labels = read_from(folder, prefix + "-labels-idx1-ubyte", 1);
  const std::size_t pixels = images.dimensions[1] * images.dimensions[2];
  if (images.dimensions[0] != labels.values.size())
    fail(folder,
         fmt::format("{} images, but {} labels", images.dimensions[0], labels.values.size()));
  if (images.values.empty()) fail(folder, "holds no images");
  const unsigned largest = *std::ranges::max_element(labels.values);
  if (largest >= kClasses) fail(folder, fmt::format("a label is {}, above 9", largest));
  return {pixels, std::move(images.values), std::move(labels.values), kClasses};
}

/// Mean and standard deviation over all pixels of all images, with exact sums in 64-bit integers.
void standardise(TrainingData& sets) {
  std::uint64_t sum = 0, squares = 0;
  for (const std::uint64_t pixel : sets.train.images) sum += pixel, squares += pixel * pixel;
  const auto count = static_cast<double>(sets.train.images.size());
  const double mean = static_cast<double>(sum) / count;
  const double variance = static_cast<double>(squares) / count - mean * mean;
  for (Dataset* set : {&sets.train, &sets.test}) {
    set->mean = static_cast<float>(mean);
    set->scale = static_cast<float>(1 / std::sqrt(std::max(variance, 1.0)));
  }
}

}  // namespace

IdxArray read_idx(const std::filesystem::path& path, std::size_t dimensions) {
  GzipFile file(path);
  if (read_big_endian(file) != (kUnsignedByte << 8 | dimensions))
    fail(path, fmt::format("is not an IDX file of unsigned bytes in {} dimensions", dimensions));
  IdxArray array;
  std::size_t count = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    array.dimensions.push_back(read_big_endian(file));
    count *= std::min(array.dimensions.back(), kMaxBytes);  // both factors below 2^31: no overflow
    if (count > kMaxBytes) fail(path, "asks for more than a gigabyte of values");
  }
  array.values.resize(count);
  file.read(array.values);
  file.expect_end();
  return array;
}

void Dataset::read(std::span<const std::uint32_t> indices, Examples& examples) const {
  examples.inputs.resize(indices.size() * pixels);
  examples.labels.resize(indices.size());
  auto input = examples.inputs.begin();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    examples.labels[i] = labels[indices[i]];
    const auto image = std::span(images).subspan(indices[i] * pixels, pixels);
    input = std::ranges::transform(image, input, [this](std::uint8_t pixel) {
              return static_cast<float>(pixel) * scale - mean * scale;
            }).out;
  }
}

TrainingData load_training_data(const std::filesystem::path& folder) {
  TrainingData sets{load(folder, "train"), load(folder, "t10k")};
  if (sets.train.pixels != sets.test.pixels)
    fail(folder, fmt::format("training images have {} pixels, test images {}", sets.train.pixels,
                             sets.test.pixels));
  standardise(sets);
  return sets;
}

}  // namespace trainer
