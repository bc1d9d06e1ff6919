// Ranges of values as tiles of one size. A partial last tile is copied and padded with zeros, so
// kernels process whole tiles only. Outputs may bypass the caches.
#if defined(TERSOR_KERNELS_HOST_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_HOST_TILES_INL_H_
#undef TERSOR_KERNELS_HOST_TILES_INL_H_
#else
#define TERSOR_KERNELS_HOST_TILES_INL_H_
#endif

#include "kernels/host/arguments.h"
#include "kernels/host/checksum-inl.h"
#include "kernels/host/simd-inl.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kCacheLine = 64;  // bytes per cache line

/// The type of absent values, for example of a missing residual, and of the pointer to absent
/// values.
struct NoValues {
  NoValues operator+(std::size_t) const { return {}; }
};

template <typename T>
using Pointer = std::conditional_t<std::is_same_v<std::remove_const_t<T>, NoValues>, NoValues, T*>;

/// An input of `count` values, read in tiles of kTile values.
template <typename T, std::size_t kTile>
class Input {
 public:
  Input(const void* values, std::size_t count)
      : values_(static_cast<const T*>(values)), count_(count) {}

  /// Returns kTile values from index `first` on.
  HWY_INLINE const T* tile(std::size_t first) {
    return HWY_LIKELY(first + kTile <= count_) ? values_ + first : padded(first);
  }

  /// Prefetches a tile, or the part [first, first + count), if all of the part exists.
  HWY_INLINE void prefetch(std::size_t first, std::size_t count = kTile) const {
    if (first + count > count_) return;
    for (std::size_t i = 0; i < count; i += kCacheLine / sizeof(T))
      hwy::Prefetch(values_ + first + i);
  }

 private:
  HWY_NOINLINE const T* padded(std::size_t first) {
    std::fill(std::copy_n(values_ + first, count_ - first, padded_), padded_ + kTile, T{});
    return padded_;
  }

  const T* values_;
  std::size_t count_;
  alignas(kCacheLine) T padded_[kTile];
};

template <std::size_t kTile>
class Input<NoValues, kTile> {
 public:
  Input(const void*, std::size_t) {}
  HWY_INLINE NoValues tile(std::size_t) { return {}; }
  HWY_INLINE void prefetch(std::size_t, std::size_t = kTile) const {}
};

/// Writes whole lines with streaming stores. Both pointers must be aligned to a line. Portable code
/// has no streaming stores and uses memcpy.
HWY_INLINE void stream_lines(const std::byte* from, std::byte* to, std::size_t lines) {
#if TERSOR_PORTABLE
  std::memcpy(to, from, lines * kCacheLine);
#else
  const auto* source = reinterpret_cast<const float*>(from);
  auto* target = reinterpret_cast<float*>(to);
  for (std::size_t i = 0; i < lines * kCacheLine / sizeof(float); i += kLanes)
    hn::Stream(hn::Load(F32(), source + i), F32(), target + i);
#endif
}

/// Observers of streamed bytes, called in order. NoStreamSum ignores the bytes, and StreamSum sums
/// the words.
struct NoStreamSum {
  void add(const std::byte*, std::size_t) {}
};
class StreamSum {
 public:
  /// If `words` is null, nothing is summed.
  explicit StreamSum(StreamedWords* words)
      : words_(words), sum_(words == nullptr ? 0 : words->first) {}
  StreamSum(const StreamSum&) = delete;
  StreamSum& operator=(const StreamSum&) = delete;
  ~StreamSum() {
    if (words_ != nullptr) words_->sum = sum_.value();
  }

  HWY_INLINE void add(const std::byte* bytes, std::size_t count) {
    if (words_ != nullptr) sum_.add(bytes, count / kWordBytes);
  }

 private:
  StreamedWords* const words_;
  WordSum sum_;
};

/// An output written in tiles of kTile values. A streaming output first writes a tile to a stage in
/// the first-level cache, aligned like the destination. Whole lines of the stage are then streamed.
/// Both ends of the range share lines with other data and are copied.
template <typename T, std::size_t kTile, class Sum = NoStreamSum>
class Output {
 public:
  template <typename... SumArguments>
  Output(void* destination, Store store, SumArguments... sum)
      : sum_(sum...),
        destination_(static_cast<std::byte*>(destination)),
        streaming_(store == Store::kStreaming) {
    if (!streaming_) return;
    begin_ = fill_ = reinterpret_cast<std::uintptr_t>(destination) % kCacheLine;
    destination_ -= fill_;
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (!streaming_) return;
    sum_.add(stage_ + begin_, fill_ - begin_);
    if (fill_ > begin_) std::memcpy(destination_ + begin_, stage_ + begin_, fill_ - begin_);
    hwy::FlushStream();
  }

  /// Returns space for kTile values. The first `count` values will be kept.
  HWY_INLINE T* tile(std::size_t count) {
    const bool direct = !streaming_ && count == kTile;
    return reinterpret_cast<T*>(direct ? destination_ : stage_ + fill_);
  }

  /// Commits the first `count` values of the written tile.
  HWY_INLINE void commit(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (streaming_) return flush(bytes);
    if (count < kTile) std::memcpy(destination_, stage_, bytes);
    destination_ += bytes;
  }

 private:
  void flush(std::size_t bytes) {
    fill_ += bytes;
    if (fill_ < kCacheLine) return;
    const std::size_t end = fill_ / kCacheLine * kCacheLine;
    sum_.add(stage_ + begin_, end - begin_);
    std::size_t done = 0;
    if (begin_ != 0) {
      std::memcpy(destination_ + begin_, stage_ + begin_, kCacheLine - begin_);
      begin_ = 0;
      done = kCacheLine;
    }
    stream_lines(stage_ + done, destination_ + done, (end - done) / kCacheLine);
    if (fill_ != end) std::memcpy(stage_, stage_ + end, kCacheLine);
    destination_ += end;
    fill_ -= end;
  }

  Sum sum_;
  std::byte* destination_;  // streaming: aligned to a line, destination of stage_[0]
  const bool streaming_;
  std::size_t begin_ = 0;  // first bytes of the stage that belong to other data
  std::size_t fill_ = 0;   // bytes in the stage
  alignas(kCacheLine) std::byte stage_[kTile * sizeof(T) + 2 * kCacheLine];
};

template <std::size_t kTile>
class Output<NoValues, kTile, NoStreamSum> {
 public:
  Output(void*, Store) {}
  HWY_INLINE NoValues tile(std::size_t) { return {}; }
  HWY_INLINE void commit(std::size_t) {}
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HOST_TILES_INL_H_
