// Draws values in blocks, with a separate engine per block. Several threads can fill a gradient,
// and the values do not depend on the number of threads.

#include "bench/common/samples.h"

#include <fmt/format.h>
#include <tersor/align.h>
#include <tersor/error.h>
#include <tersor/threads.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/common/tensors.h"
#include "kernels/scalar/convert.h"

namespace tersor::bench {
namespace {

constexpr std::size_t kEngineValues = std::size_t{1} << 16;  // values per engine

/// Laplace distribution of variance 1: applies the inverse distribution function to a uniform
/// number.
struct LaplaceDistribution {
  float operator()(std::mt19937_64& engine) {
    const float uniform = std::uniform_real_distribution<float>(-1.0f, 1.0f)(engine);
    const float magnitude = -std::log1p(-std::min(std::abs(uniform), 0.99999994f));
    return std::copysign(magnitude * 0.70710678f, uniform);
  }
};

/// Values from 1 to 1 + 2^-10, with 13 differing bits.
struct NarrowDistribution {
  float operator()(std::mt19937_64& engine) {
    return 1.0f + static_cast<float>(engine() % 8192) * 0x1p-23f;
  }
};

template <typename Distribution>
void draw(std::span<float> values, std::mt19937_64& engine, Distribution distribution) {
  for (float& value : values) value = distribution(engine);
}

void draw_block(const std::string& name, std::span<float> values, std::mt19937_64 engine) {
  if (name == "normal") return draw(values, engine, std::normal_distribution<float>());
  if (name == "laplace") return draw(values, engine, LaplaceDistribution());
  if (name == "narrow") return draw(values, engine, NarrowDistribution());
  draw(values, engine, std::student_t_distribution<float>(3.0f));
}

bool is_distribution(const std::string& name) {
  return name == "normal" || name == "laplace" || name == "student" || name == "narrow";
}

void store(std::span<const float> values, ValueSpan destination) {
  visit_gradient_dtype(destination.dtype(), [&]<typename T>(T) {
    std::ranges::transform(values, destination.as<T>().begin(), kernels::from_f32<T>);
  });
}

}  // namespace

SampleSource::SampleSource(const std::string& name) : name_(name) {
  if (is_distribution(name)) return;
  if (!is_tensor_file(name))
    throw InvalidArgumentError(
        fmt::format("no data \"{}\"; give normal, laplace, student, narrow, or "
                    "FILE.npy or FILE.safetensors",
                    name));
  for (const Tensor& tensor : read_tensors(name)) {
    tensors_.push_back({tensor.name, file_.size(), tensor.values.size()});
    file_.insert(file_.end(), tensor.values.begin(), tensor.values.end());
  }
}

std::vector<SampleTensor> SampleSource::tensors(std::size_t count) const {
  return file_.empty() ? std::vector<SampleTensor>{{name_, 0, count}} : tensors_;
}

std::optional<std::size_t> SampleSource::count() const {
  return file_.empty() ? std::nullopt : std::optional(file_.size());
}

void SampleSource::fill_f32(std::span<float> values, std::uint64_t seed, std::size_t first) const {
  if (file_.empty()) {
    std::seed_seq words{seed, seed >> 32, first, first >> 32};
    return draw_block(name_, values, std::mt19937_64(words));
  }
  std::ranges::copy(std::span(file_).subspan(first, values.size()), values.begin());
}

void SampleSource::fill(ValueSpan values, std::uint64_t seed, std::size_t first) const {
  if (!file_.empty() && (first > file_.size() || values.count() > file_.size() - first))
    throw InvalidArgumentError(fmt::format("{} holds {} values, fewer than the {} asked for", name_,
                                           file_.size(), first + values.count()));
  Threads threads(0);
  threads.run(ceil_div(values.count(), kEngineValues), [&](std::size_t block) {
    const std::size_t begin = block * kEngineValues;
    std::vector<float> drawn(std::min(kEngineValues, values.count() - begin));
    fill_f32(drawn, seed, first + begin);
    store(drawn, values.subspan(begin, drawn.size()));
  });
}

Buffer sample_buffer(const SampleSource& source, std::size_t count, Dtype dtype,
                     std::uint64_t seed) {
  Buffer buffer(count * dtype_bytes(dtype));
  source.fill(buffer.values(count, dtype), seed);
  return buffer;
}

}  // namespace tersor::bench
