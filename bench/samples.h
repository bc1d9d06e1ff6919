// Gradients to measure with: drawn from a distribution, or from a file. Never zeros.
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

/// One of a source's tensors: `count` values from number `first` on.
struct SampleTensor {
  std::string name;
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Where values come from.
class SampleSource {
 public:
  /// "normal", "laplace" (both of variance 1), "student" (Student's t, 3 degrees of freedom),
  /// "narrow" (nearly one magnitude, in which no sample finds top-k's threshold), or the name of a
  /// .npy or .safetensors file, whose tensors follow each other. Throws InvalidArgument for
  /// any other name or a bad file.
  explicit SampleSource(const std::string& name = "normal");

  const std::string& name() const { return name_; }
  /// How many values there are; a distribution has no end.
  std::optional<std::size_t> count() const;
  /// Those of a file; of a distribution one, of `count` values.
  std::vector<SampleTensor> tensors(std::size_t count) const;

  /// Fills `values` (f32, bf16 or f16) with values number `first` and on. The same seed and place
  /// give the same values. Throws InvalidArgument where a file has not as many.
  void fill(ValueSpan values, std::uint64_t seed, std::size_t first = 0) const;

 private:
  void fill_f32(std::span<float> values, std::uint64_t seed, std::size_t first) const;

  std::string name_;
  std::vector<float> file_;
  std::vector<SampleTensor> tensors_;
};

/// A buffer of `count` values of `dtype`, filled.
Buffer sample_buffer(const SampleSource& source, std::size_t count, Dtype dtype,
                     std::uint64_t seed);

}  // namespace tersor::bench
