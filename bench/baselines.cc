// Read, copy and triad, each cut into one contiguous piece a thread, as memcpy wants it: only large
// pieces are written past the caches.

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/baselines.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/baselines.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::ScalableTag<std::uint32_t>;
using Floats = hn::ScalableTag<float>;

std::uint64_t read_all(const std::byte* bytes, std::size_t count) {
  const Words d;
  const auto* words = reinterpret_cast<const std::uint32_t*>(bytes);
  const std::size_t lanes = hn::Lanes(d), all = count / sizeof(std::uint32_t);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  std::size_t i = 0;
  for (; i + 4 * lanes <= all; i += 4 * lanes) {
    a = hn::Xor(a, hn::LoadU(d, words + i));
    b = hn::Xor(b, hn::LoadU(d, words + i + lanes));
    c = hn::Xor(c, hn::LoadU(d, words + i + 2 * lanes));
    e = hn::Xor(e, hn::LoadU(d, words + i + 3 * lanes));
  }
  std::uint64_t result = 0;
  for (; i < all; ++i) result ^= words[i];
  HWY_ALIGN std::uint32_t last[hn::MaxLanes(d)];
  hn::Store(hn::Xor(hn::Xor(a, b), hn::Xor(c, e)), d, last);
  for (std::size_t lane = 0; lane < lanes; ++lane) result ^= last[lane];
  return result;
}

void triad(float factor, const float* addends, float* values, std::size_t count) {
  const Floats d;
  const auto factors = hn::Set(d, factor);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::MulAdd(factors, hn::LoadU(d, addends + i), hn::LoadU(d, values + i)), d,
               values + i);
  for (; i < count; ++i) values[i] += factor * addends[i];
}

}  // namespace tersor::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::bench {
namespace {

HWY_EXPORT(read_all);
HWY_EXPORT(triad);

/// The part of `count` elements that falls to `index` of `parts`, from a multiple of 64.
template <typename T>
std::span<T> part(std::span<T> all, std::size_t index, std::size_t parts) {
  const auto edge = [&](std::size_t i) {
    return i == parts ? all.size() : all.size() / parts * i / 64 * 64;
  };
  return all.subspan(edge(index), edge(index + 1) - edge(index));
}

/// Not zeros: pages never written to would all be one page of the caches.
Buffer ramp(std::size_t count) {
  Buffer buffer(count * sizeof(float));
  const auto values = buffer.values(count, Dtype::kF32).as<float>();
  for (std::size_t i = 0; i < count; ++i) values[i] = 1.0f + static_cast<float>(i % 1021) * 1e-3f;
  return buffer;
}

std::span<float> floats(const Buffer& buffer) {
  return buffer.values(buffer.bytes() / sizeof(float), Dtype::kF32).as<float>();
}

class ReadBaseline : public Baseline {
 public:
  explicit ReadBaseline(ConstByteSpan bytes) : bytes_(bytes) {}
  std::string_view name() const override { return "read"; }
  void run(Threads& threads) override {
    std::vector<std::uint64_t> results(threads.count());
    threads.run(results.size(), [&](std::size_t index) {
      results[index] = bench::read_all(part(bytes_, index, results.size()));
    });
    for (const std::uint64_t result : results) seen_ = seen_ ^ result;
  }

 private:
  ConstByteSpan bytes_;
  volatile std::uint64_t seen_ = 0;
};

class CopyBaseline : public Baseline {
 public:
  explicit CopyBaseline(std::size_t moved_bytes)
      : source_(ramp(moved_bytes / 2 / sizeof(float))),
        destination_(ramp(moved_bytes / 2 / sizeof(float))) {}
  std::string_view name() const override { return "memcpy"; }
  void run(Threads& threads) override {
    const std::size_t parts = threads.count();
    threads.run(parts, [&](std::size_t index) {
      const auto from = part(source_.span(), index, parts);
      std::memcpy(part(destination_.span(), index, parts).data(), from.data(), from.size());
    });
  }

 private:
  Buffer source_, destination_;
};

class TriadBaseline : public Baseline {
 public:
  explicit TriadBaseline(std::size_t moved_bytes)
      : addends_(ramp(moved_bytes / 3 / sizeof(float))),
        values_(ramp(moved_bytes / 3 / sizeof(float))) {}
  std::string_view name() const override { return "triad"; }
  void run(Threads& threads) override {
    const std::size_t parts = threads.count();
    factor_ = -factor_;  // what was added comes off again
    threads.run(parts, [&](std::size_t index) {
      triad(factor_, part(floats(addends_), index, parts), part(floats(values_), index, parts));
    });
  }

 private:
  Buffer addends_, values_;
  float factor_ = 0.5f;
};

}  // namespace

std::uint64_t read_all(ConstByteSpan bytes) {
  return HWY_DYNAMIC_DISPATCH(read_all)(bytes.data(), bytes.size());
}

void triad(float factor, std::span<const float> addends, std::span<float> values) {
  const std::size_t count = std::min(addends.size(), values.size());
  HWY_DYNAMIC_DISPATCH(triad)(factor, addends.data(), values.data(), count);
}

std::unique_ptr<Baseline> read_baseline(ConstByteSpan bytes) {
  return std::make_unique<ReadBaseline>(bytes);
}

std::unique_ptr<Baseline> copy_baseline(std::size_t moved_bytes) {
  return std::make_unique<CopyBaseline>(moved_bytes);
}

std::unique_ptr<Baseline> triad_baseline(std::size_t moved_bytes) {
  return std::make_unique<TriadBaseline>(moved_bytes);
}

}  // namespace tersor::bench
#endif
