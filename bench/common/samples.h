// Gradients for measurements, from a distribution or a file; never zeros.
#pragma once

#include <tersor/buffer.h>
#include <tersor/span.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tersor::bench {

/// Default number of gradient values, without --count and without a file.
inline constexpr std::size_t kDefaultCount = std::size_t{1} << 26;

/// A tensor of a source: `count` values from index `first` on.
struct SampleTensor {
  std::string name;
  std::size_t first = 0;
  std::size_t count = 0;
};

/// A source of values.
class SampleSource {
 public:
  /// A source is a distribution or the name of a .npy or .safetensors file. The distributions are
  /// "normal", "laplace" (both of variance 1), "student" (Student's t, 3 degrees of freedom) and
  /// "narrow". The magnitudes of "narrow" are nearly equal, so top-k finds no threshold by
  /// sampling. The tensors of a file are concatenated. Throws InvalidArgumentError for any other
  /// name or a bad file.
  explicit SampleSource(const std::string& name = "normal");

  const std::string& name() const { return name_; }
  /// The number of values; nullopt for a distribution.
  std::optional<std::size_t> count() const;
  /// The tensors of a file; a single tensor of `count` values for a distribution.
  std::vector<SampleTensor> tensors(std::size_t count) const;

  /// Fills `values` (f32, bf16 or f16) with the values from index `first` on. Equal seeds and
  /// indices give equal values. Throws InvalidArgumentError if a file has too few values.
  void fill(ValueSpan values, std::uint64_t seed, std::size_t first = 0) const;

 private:
  void fill_f32(std::span<float> values, std::uint64_t seed, std::size_t first) const;

  std::string name_;
  std::vector<float> file_;
  std::vector<SampleTensor> tensors_;
};

/// Returns a filled buffer of `count` values of `dtype`.
Buffer sample_buffer(const SampleSource& source, std::size_t count, Dtype dtype,
                     std::uint64_t seed);

}  // namespace tersor::bench
