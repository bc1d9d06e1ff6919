// Random bytes for stochastic rounding on a device.
#pragma once

#include "kernels/device/device_call.cuh"
#include "kernels/device/units.cuh"
#include "kernels/scalar/philox.h"

#include <tersor/codec.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace tersor::kernels {

/// The source of random bytes:
/// - kNone: nearest rounding needs no random bytes.
/// - kUnits: each Philox counter serves 16 values. Each segment must start at a multiple of 512 in
///   the parameter.
/// - kAny: each value has its own counter.
enum class NoiseKind : std::uint8_t { kNone, kUnits, kAny };

/// Calls the visitor with the kind of random bytes needed by a call. `kUsesNoise` is false if
/// stochastic rounding is not supported or cannot change values.
template <bool kUsesNoise = true, class Call, typename Visitor>
void visit_noise(Rounding rounding, const Call& call, Visitor&& visitor) {
  if constexpr (kUsesNoise)
    if (rounding == Rounding::kStochastic) {
      const bool in_units = std::ranges::all_of(call.segments, [](const Segment& segment) {
        return segment.first_index % kNoiseUnit == 0;
      });
      if (in_units) return visitor(Constant<NoiseKind::kUnits>{});
      return visitor(Constant<NoiseKind::kAny>{});
    }
  visitor(Constant<NoiseKind::kNone>{});
}

/// Long lists are compiled only for calls without noise and feedback.
template <typename E, NoiseKind kKind>
constexpr ListLengths kEncodeLengths =
    std::is_same_v<E, NoResidual>&& kKind == NoiseKind::kNone ? ListLengths::kShortAndLong
                                                              : ListLengths::kShort;

template <NoiseKind kKind, typename Visitor>
void visit_reduce_lengths(std::size_t segments, std::size_t frames, Visitor&& visitor) {
  if constexpr (kKind == NoiseKind::kAny)  // rare and slow
    visitor(Constant<kShortListSegments>{}, Constant<kMaxFrames>{});
  else
    visit_lengths(segments, frames, visitor);
}

/// Nearest rounding does not read the step. Therefore the last kernel may advance the step.
template <NoiseKind kKind>
constexpr Advance kAdvanceFor =
    kKind == NoiseKind::kNone ? Advance::kInLastLaunch : Advance::kSeparateLaunch;

/// The random bytes of one thread's rows in a unit.
template <NoiseKind kKind, unsigned kRow>
class RowNoise;

template <unsigned kRow>
class RowNoise<NoiseKind::kNone, kRow> {
 public:
  template <class Warp>
  TERSOR_DEVICE RowNoise(const Warp&, std::uint64_t, std::uint64_t, std::uint32_t, std::uint32_t) {}
  TERSOR_DEVICE explicit RowNoise(const std::uint32_t (&)[4]) {}
};

template <unsigned kRow>
class RowNoise<NoiseKind::kAny, kRow> {
 public:
  /// `element`: index of the unit's first value in the parameter.
  template <class Warp>
  TERSOR_DEVICE RowNoise(const Warp& warp, std::uint64_t element, std::uint64_t key,
                         std::uint32_t step, std::uint32_t parameter)
      : element_(element + warp.thread_rank() * kRow),
        key_(key),
        step_(step),
        parameter_(parameter) {}

  TERSOR_DEVICE std::uint32_t at(unsigned chunk, unsigned index) const {
    return noise_of(element_ + chunk * kChunkValues<kRow> + index, key_, step_, parameter_);
  }

 private:
  std::uint64_t element_, key_;
  std::uint32_t step_, parameter_;
};

template <unsigned kRow>
class RowNoise<NoiseKind::kUnits, kRow> {
 public:
  /// `words`: the random bytes of 16 values.
  TERSOR_DEVICE explicit RowNoise(const std::uint32_t (&words)[4]) {
    TERSOR_UNROLL
    for (unsigned i = 0; i < 4; ++i) word_[i / (kRow / 4)][i % (kRow / 4)] = words[i];
  }
  template <class Warp>
  TERSOR_DEVICE RowNoise(const Warp& warp, std::uint64_t element, std::uint64_t key,
                         std::uint32_t step, std::uint32_t parameter) {
    const std::uint64_t first = element / kNoiseUnit * kNoiseUnitCounters;
    const unsigned thread = warp.thread_rank();
    if constexpr (kRow == 4) {
      const PhiloxWords words = noise_words(first + thread, key, step, parameter);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < 4; ++chunk) word_[chunk][0] = words.word[chunk];
    } else {
      // Threads t and t + 16 need halves of the same two counters. Each thread computes one
      // counter, and the threads exchange the unused halves.
      const bool low = thread < 16;
      const unsigned counter = low ? 2 * thread : 2 * (thread - 16) + 1;
      const PhiloxWords words = noise_words(first + counter, key, step, parameter);
      const std::uint32_t mine[2] = {low ? words.word[0] : words.word[1],
                                     low ? words.word[2] : words.word[3]};
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < 2; ++chunk) {
        const std::uint32_t other =
            warp.shuffle_xor(low ? words.word[2 * chunk + 1] : words.word[2 * chunk], 16);
        word_[chunk][0] = low ? mine[chunk] : other;
        word_[chunk][1] = low ? other : mine[chunk];
      }
    }
  }

  TERSOR_DEVICE std::uint32_t at(unsigned chunk, unsigned index) const {
    return word_[chunk][index / 4] >> (8 * (index % 4)) & 0xffu;
  }

 private:
  std::uint32_t word_[kUnitChunks<kRow>][kRow / 4];
};

/// The random bytes of the rows of a tile, computed by a warp in shared memory.
template <NoiseKind kKind, unsigned kThreads>
class TileNoise {
 public:
  template <class Warp>
  TERSOR_DEVICE void draw(const Warp&, unsigned, std::uint64_t, std::uint64_t, std::uint32_t,
                          std::uint32_t) {}
  TERSOR_DEVICE std::uint32_t word(unsigned, unsigned) const { return 0; }
};
template <unsigned kThreads>
class TileNoise<NoiseKind::kUnits, kThreads> {
 public:
  /// `element`: index of the tile's first value in the parameter.
  template <class Warp>
  TERSOR_DEVICE void draw(const Warp& warp, unsigned warp_rank, std::uint64_t element,
                          std::uint64_t key, std::uint32_t step, std::uint32_t parameter) {
    const std::uint64_t first = element / kNoiseUnit * kNoiseUnitCounters;
    warp.sync();
    TERSOR_UNROLL
    for (unsigned unit = 0; unit < 2; ++unit) {
      const unsigned counter = unit * kNoiseUnitCounters + warp.thread_rank();
      const PhiloxWords words = noise_words(first + counter, key, step, parameter);
      TERSOR_UNROLL
      for (unsigned i = 0; i < 4; ++i)
        word_.set(warp_rank * kWords + counter * 4 + i, words.word[i]);
    }
    warp.sync();
  }

  /// Returns the random bytes of the four values from value `index` of the tile on.
  TERSOR_DEVICE std::uint32_t word(unsigned warp_rank, unsigned index) const {
    const unsigned counter =
        index / kNoiseUnit * kNoiseUnitCounters + static_cast<unsigned>(index % 128 / 4);
    return word_.get(warp_rank * kWords + counter * 4 + noise_word(index));
  }

 private:
  static constexpr unsigned kWords = 2 * kNoiseUnitCounters * 4;  // per warp
  SharedArray<std::uint32_t, kThreads / kWarpThreads * kWords> word_;
};

/// The key type of a kernel with wide noise.
struct NoKey {};
template <NoiseKind kKind>
using WideKeyOf = std::conditional_t<kKind == NoiseKind::kNone, NoKey, WideKey>;

/// 16 random bits per value.
template <NoiseKind kKind, unsigned kRow>
class WideRowNoise {
 public:
  template <class Warp>
  TERSOR_DEVICE WideRowNoise(const Warp& warp, std::uint64_t element, const WideKey& key,
                             std::uint32_t step, std::uint32_t parameter)
      : high_(warp, element, key.high, step, parameter),
        low_(warp, element, key.low, step, parameter) {}

  TERSOR_DEVICE std::uint32_t at(unsigned chunk, unsigned index) const {
    return high_.at(chunk, index) << 8 | low_.at(chunk, index);
  }

 private:
  RowNoise<kKind, kRow> high_, low_;
};

template <unsigned kRow>
class WideRowNoise<NoiseKind::kNone, kRow> {
 public:
  template <class Warp>
  TERSOR_DEVICE WideRowNoise(const Warp&, std::uint64_t, NoKey, std::uint32_t, std::uint32_t) {}
};

}  // namespace tersor::kernels
