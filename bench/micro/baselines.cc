// Read, share, copy and triad. Each thread has one contiguous piece, because memcpy writes only
// large pieces past the caches.

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/micro/baselines.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "bench/micro/machine.h"

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

/// Interleaves reads and writes: writes `written` bytes in total, a vector at a time, in proportion
/// to the bytes already read.
void read_and_share(const std::byte* bytes, std::size_t count, std::byte* share,
                    std::size_t written) {
  const Words d;
  const std::size_t lanes = hn::Lanes(d), step = 4 * lanes, all = count / sizeof(std::uint32_t);
  const auto* words = reinterpret_cast<const std::uint32_t*>(bytes);
  auto* out = reinterpret_cast<std::uint32_t*>(share);
  const std::size_t last = written / sizeof(std::uint32_t) / lanes * lanes;
  // Units of 2^-32 words avoid a division in the loop.
  const std::uint64_t due_per_step = all == 0 ? 0 : ((last << 32) / all) * step;
  auto a = hn::Zero(d);
  std::size_t done = 0;
  std::uint64_t due = 0;
  for (std::size_t i = 0; i + step <= all; i += step) {
    for (std::size_t j = 0; j < step; j += lanes) a = hn::Xor(a, hn::LoadU(d, words + i + j));
    for (due += due_per_step; done + lanes <= due >> 32; done += lanes)
      hn::Stream(a, d, out + done);
  }
  for (; done < last; done += lanes) hn::Stream(a, d, out + done);
  hwy::FlushStream();
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
HWY_EXPORT(read_and_share);
HWY_EXPORT(triad);

/// The range of part `index` of `parts`, starting at a multiple of 64 elements.
template <typename T>
std::span<T> part(std::span<T> all, std::size_t index, std::size_t parts) {
  const auto edge = [&](std::size_t i) {
    return i == parts ? all.size() : all.size() / parts * i / 64 * 64;
  };
  return all.subspan(edge(index), edge(index + 1) - edge(index));
}

/// Filled with nonzero values: untouched pages would all map to the same physical page in the
/// caches.
std::shared_ptr<Buffer> ramp(std::size_t bytes) {
  const std::size_t count = bytes / sizeof(float);
  auto buffer = std::make_shared<Buffer>(count * sizeof(float));
  const auto values = buffer->values(count, Dtype::kF32).as<float>();
  for (std::size_t i = 0; i < count; ++i) values[i] = 1.0f + static_cast<float>(i % 1021) * 1e-3f;
  return buffer;
}

std::span<float> floats(const Buffer& buffer) {
  return buffer.values(buffer.bytes() / sizeof(float), Dtype::kF32).as<float>();
}

/// A call of `body(index, parts)` on each thread.
template <typename Body>
TimedCall loop(std::string_view name, Threads& threads, Body body) {
  return {std::string(name), [&threads, body] {
            const std::size_t parts = threads.count();
            threads.run(parts, [&](std::size_t index) { body(index, parts); });
          }};
}

std::vector<TimedCall> read_loops(const MemoryWork& work, Threads& threads) {
  const auto seen = std::make_shared<std::atomic<std::uint64_t>>(0);  // keeps the reads
  const auto share = ramp(work.written);
  const ConstByteSpan input = work.input;
  return {loop(kReadLoop, threads,
               [=](std::size_t index, std::size_t parts) {
                 const ConstByteSpan own = part(input, index, parts);
                 *seen ^= HWY_DYNAMIC_DISPATCH(read_all)(own.data(), own.size());
               }),
          loop(kShareLoop, threads, [=](std::size_t index, std::size_t parts) {
            const ConstByteSpan own = part(input, index, parts);
            const ByteSpan to = part(share->span(), index, parts);
            HWY_DYNAMIC_DISPATCH(read_and_share)(own.data(), own.size(), to.data(), to.size());
          })};
}

}  // namespace

std::vector<TimedCall> memory_loops(const MemoryWork& work, Threads& threads) {
  if (work.access == Access::kRead) return read_loops(work, threads);
  const bool copies = work.access == Access::kWrite;
  const std::size_t bytes = work.bytes / (copies ? 2 : 3);
  const auto source = ramp(bytes), destination = ramp(bytes);
  if (copies)
    return {loop(kCopyLoop, threads, [=](std::size_t index, std::size_t parts) {
      const ByteSpan from = part(source->span(), index, parts);
      std::memcpy(part(destination->span(), index, parts).data(), from.data(), from.size());
    })};
  return {loop(kTriadLoop, threads,
               [=, factor = std::make_shared<std::vector<float>>(threads.count(), 0.5f)](
                   std::size_t index, std::size_t parts) {
                 const std::span<float> addends = part(floats(*source), index, parts);
                 const std::span<float> values = part(floats(*destination), index, parts);
                 (*factor)[index] *= -1;  // undoes the previous addition
                 HWY_DYNAMIC_DISPATCH(triad)
                 ((*factor)[index], addends.data(), values.data(), values.size());
               })};
}

}  // namespace tersor::bench
#endif
