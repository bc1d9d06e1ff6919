// The kernels of none, bf16 and f16. A warp processes a unit of 512 values of one segment at a
// time, 16 values per thread.
//
// Grid: as many blocks of 256 threads as are resident. Each warp strides over the units, or
// processes consecutive units in long lists. Memory traffic per value:
//   Encode: reads the gradient and writes the wire value. Error feedback also reads and writes the
//     residual.
//   Decode: reads one wire value per frame and writes the output.
//   Reduce: reads one wire value per frame and writes one wire value. Also reads and writes the
//     owner's residual.
#pragma once

#include "kernels/cast/decode_body.cuh"
#include "kernels/device/call.cuh"
#include "kernels/device/frame_kernels.cuh"
#include "kernels/device/noise.cuh"
#include "kernels/device/units.cuh"

#include <tersor/align.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// Returns a value as sent. Every NaN becomes the same NaN.
template <typename Wire>
TERSOR_DEVICE float wire_value(float p) {
  if constexpr (std::is_same_v<Wire, float>)
    return magnitude_bits(p) > kInfinityBits ? float_of(kNanBits) : p;
  else
    return p;
}

/// kSection if sections of a frame are padded with zeros. Raw values have no padding.
enum class Padding : std::uint8_t { kNone, kSection };

/// Writes wire values and residual of one unit, for encode and reduce.
template <typename Wire, typename E, NoiseKind kKind, unsigned kRow>
struct CastUnit {
  static constexpr bool kFeedback = !std::is_same_v<E, NoResidual>;
  static constexpr bool kCounts = std::is_same_v<Wire, F16>;
  static constexpr bool kRandom = kKind != NoiseKind::kNone;
  using Noise = WideRowNoise<kKind, kRow>;
  using Stored = CastStored<Wire, Wire>;

  UnitPosition<kRow> position;
  Wire* values;  // of the segment
  const E* residual_in;
  E* residual_out;
  bool values_aligned, residual_aligned;
  Padding padding;
  bool inactive;  // True if zeros are sent and the residual is kept

  /// Creates a CastUnit from an EncodeEntry or a ReduceEntry.
  template <class Entry>
  TERSOR_DEVICE static CastUnit of(const Entry& segment, const UnitPosition<kRow>& position,
                                   std::byte* payload, Padding padding, bool inactive) {
    bool residual_aligned = false;
    if constexpr (kFeedback)
      residual_aligned = is_aligned_for<E, kRow>(segment.residual_in) &&
                         is_aligned_for<E, kRow>(segment.residual_out);
    auto* values = reinterpret_cast<Wire*>(payload + segment.offset);
    return {position,
            values,
            static_cast<const E*>(segment.residual_in),
            static_cast<E*>(segment.residual_out),
            is_aligned_for<Wire, kRow>(values),
            residual_aligned,
            padding,
            inactive};
  }

  TERSOR_DEVICE void load_residual(Rows<kRow>& residual) const {
    if constexpr (kFeedback)
      load_rows<Load::kAny>(residual_in, position, residual_aligned, residual);
  }

  /// Returns the number of finite values that overflowed the wire type. With noise, `p` becomes the
  /// sent value and `residual` the remainder.
  TERSOR_DEVICE unsigned write(Rows<kRow>& p, Rows<kRow>& residual, const Noise& noise) const {
    unsigned overflows = 0;
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const std::size_t left = position.row(chunk, false).left;
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) {
        p[chunk][i] = i < left && !inactive ? wire_value<Wire>(p[chunk][i]) : 0.0f;
        if constexpr (kCounts)
          overflows += magnitude_bits(p[chunk][i]) >= kF16OverflowBits && is_finite(p[chunk][i]);
        if constexpr (kRandom) {
          const float sent = stochastic_bf16(p[chunk][i], noise.at(chunk, i));
          if (kFeedback && !inactive && is_finite(sent)) residual[chunk][i] = p[chunk][i] - sent;
          p[chunk][i] = sent;
        }
      }
    }
    store_values(p);
    if constexpr (kFeedback) store_residual(p, residual);
    return overflows;
  }

 private:
  /// Stores p as wire values. The last unit of a segment may end in padding.
  TERSOR_DEVICE void store_values(const Rows<kRow>& p) const {
    auto* stored = reinterpret_cast<Stored*>(values);
    if (position.is_whole()) return store_rows(p, stored, position, values_aligned);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
      store_row(p[chunk], stored, padded(position.row(chunk, false)));
  }

  TERSOR_DEVICE RowPosition padded(RowPosition row) const {
    if (padding == Padding::kNone) return row;
    const std::size_t end = align_up(position.count, 16 / sizeof(Wire));
    return {row.first, row.first < end ? end - row.first : 0, row.aligned};
  }

  TERSOR_DEVICE void store_residual(const Rows<kRow>& p, const Rows<kRow>& residual) const {
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      float left[kRow];
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) {
        const float decoded = to_f32(from_f32<Stored>(p[chunk][i]));
        left[i] = !kRandom && !inactive && is_finite(decoded) ? p[chunk][i] - decoded
                                                              : residual[chunk][i];
      }
      store_row(left, residual_out, position.row(chunk, residual_aligned));
    }
  }
};

/// Returns a function that creates the random bits of this thread's rows, given a segment and a
/// position.
template <class Unit, class Block, class Key>
TERSOR_DEVICE auto unit_noise(const Block& block, const Key& key, const CallWords& words) {
  const std::uint32_t step = Unit::kRandom ? words.step_of() : 0;
  return [&block, &key, step](const auto& segment, const auto& position) {
    return typename Unit::Noise(block.warp(), segment.first_index + position.first, key, step,
                                segment.parameter);
  };
}

/// Adds the bytes written by a warp for a segment's values [first, end) to the frame's sum.
template <typename Wire, class Sum, class Entry>
TERSOR_DEVICE void sum_written_values(const Sum& sum, const Entry& segment, std::size_t first,
                                      std::size_t end) {
  sum.add_bytes(segment.offset + first * sizeof(Wire),
                segment.offset + align_up(end * sizeof(Wire), 16));
}

/// The destination of a call's wire values.
struct CastTarget {
  std::byte* values;
  Padding padding;
  std::uint64_t* overflows;  // null: not counted
};

/// Encodes values of type G with residuals of type E. See EncodeFrame.
template <typename Wire, typename G, typename E, NoiseKind kKind>
struct CastCoder {
  static constexpr unsigned kRow = 16 / sizeof(G);
  using Unit = CastUnit<Wire, E, kKind, kRow>;
  using Order = RunOrder;
  using Policy = RunsPolicy<kKind == NoiseKind::kAny ? kCastResident.any
                            : Unit::kFeedback        ? kCastResident.feedback
                                                     : kCastResident.encode>;
  struct Shared {};

  CastTarget target;
  WideKeyOf<kKind> key;
  float factor;  // used without feedback

  template <class Block, class NoiseOf>
  struct Pass {
    const CastCoder& coder;
    const Block& block;
    float a, b;
    NoiseOf noise;
    unsigned overflows = 0;

    /// Gradient and values may be the same span (raw values in place), so loads use Load::kAny.
    template <class Sum>
    TERSOR_DEVICE void encode(const EncodeEntry& segment, std::size_t first, const Sum&) {
      const UnitPosition<kRow> position{first, segment.count, block.warp().thread_rank()};
      const Unit out = Unit::of(segment, position, coder.target.values, coder.target.padding,
                                is_inactive(segment));
      const auto* gradient = static_cast<const G*>(segment.gradient);
      Rows<kRow> p, residual;
      load_rows<Load::kAny>(gradient, position, is_aligned_for<G, kRow>(gradient), p);
      out.load_residual(residual);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRow; ++i) {
          if constexpr (Unit::kFeedback)
            p[chunk][i] = a * p[chunk][i] + b * residual[chunk][i];
          else
            p[chunk][i] = p[chunk][i] * coder.factor;
        }
      }
      overflows += out.write(p, residual, noise(segment, position));
    }
    template <class Sum>
    TERSOR_DEVICE void flush(const Sum&) const {
      if constexpr (Unit::kCounts) add_counts(block.warp(), overflows, coder.target.overflows);
    }
  };

  template <class Block>
  TERSOR_DEVICE auto begin(const Block& block, const CallWords& words, Shared&) const {
    const float a = words.gradient_factor(), b = words.residual_factor();
    auto noise = unit_noise<Unit>(block, key, words);
    return Pass<Block, decltype(noise)>{*this, block, a, b, noise};
  }

  template <class Sum>
  TERSOR_DEVICE static void sum_written(const Sum& sum, const EncodeEntry& segment,
                                        std::size_t first, std::size_t end) {
    sum_written_values<Wire>(sum, segment, first, end);
  }
};
template <typename Wire, typename G, typename E, NoiseKind kKind, unsigned kCapacity>
using CastEncodeKernel = EncodeFrame<CastCoder<Wire, G, E, kKind>, kCapacity>;

/// Copies a gradient with values of the size of the integer T. Inactive segments become zeros.
template <typename T>
struct CopyCoder {
  static constexpr unsigned kRow = 16 / sizeof(T);
  using Order = RunOrder;
  using Policy = RunsPolicy<kCastResident.copy>;
  struct Shared {};

  CastTarget target;

  template <class Block>
  struct Pass {
    const CopyCoder& coder;
    const Block& block;

    template <class Sum>
    TERSOR_DEVICE void encode(const EncodeEntry& segment, std::size_t first, const Sum&) const {
      coder.copy_unit(segment, {first, segment.count, block.warp().thread_rank()});
    }
    template <class Sum>
    TERSOR_DEVICE void flush(const Sum&) const {}
  };

  template <class Block>
  TERSOR_DEVICE Pass<Block> begin(const Block& block, const CallWords&, Shared&) const {
    return {*this, block};
  }

  template <class Sum>
  TERSOR_DEVICE static void sum_written(const Sum& sum, const EncodeEntry& segment,
                                        std::size_t first, std::size_t end) {
    sum_written_values<T>(sum, segment, first, end);
  }

 private:
  TERSOR_DEVICE void copy_unit(const EncodeEntry& segment,
                               const UnitPosition<kRow>& position) const {
    const auto* from = static_cast<const T*>(segment.gradient);
    auto* to = reinterpret_cast<T*>(target.values + segment.offset);
    const bool aligned = is_aligned_for<T, kRow>(from) && is_aligned_for<T, kRow>(to);
    const bool inactive = is_inactive(segment);
    if (aligned && position.is_whole()) return copy_whole(from, to, position, inactive);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
      copy_row(from, to, position.row(chunk, false), inactive);
    if (position.count - position.first <= kUnitValues) pad(to, position);
  }

  /// Issues all loads before the first store.
  TERSOR_DEVICE static void copy_whole(const T* from, T* to, const UnitPosition<kRow>& position,
                                       bool inactive) {
    using Bytes = RowBytes<kRow * sizeof(T)>;
    Bytes rows[kUnitChunks<kRow>];
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
      rows[chunk] = Bytes::template load_from<Load::kAny>(from + position.offset(chunk));
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
      (inactive ? Bytes{} : rows[chunk]).store_to(to + position.offset(chunk));
  }

  TERSOR_DEVICE static void copy_row(const T* from, T* to, RowPosition row, bool inactive) {
    for (unsigned i = 0; i < kRow && i < row.left; ++i)
      store(to + row.first + i, inactive ? T{} : load(from + row.first + i));
  }

  /// Writes zeros up to the end of the section, in the segment's last unit.
  TERSOR_DEVICE void pad(T* to, const UnitPosition<kRow>& position) const {
    if (target.padding == Padding::kNone) return;
    const std::size_t at = position.count + position.thread;
    if (at < align_up(position.count, 16 / sizeof(T))) store(to + at, T{});
  }
};

template <typename T, unsigned kCapacity>
using CopyKernel = EncodeFrame<CopyCoder<T>, kCapacity>;

/// Encodes sums with residuals of type E. See ReduceFrames.
template <typename Wire, typename E, NoiseKind kKind>
struct CastSumCoder {
  static constexpr unsigned kRow = 16 / sizeof(Wire);
  using Unit = CastUnit<Wire, E, kKind, kRow>;
  using Order = RunOrder;
  using Policy = RunsPolicy<kKind == NoiseKind::kAny     ? kCastResident.any
                            : kKind == NoiseKind::kUnits ? kCastResident.random
                                                         : kCastResident.reduce>;
  using Residual = E;
  struct Shared {};

  CastTarget target;
  WideKeyOf<kKind> key;

  template <class Block, class NoiseOf>
  struct Pass {
    const CastSumCoder& coder;
    const Block& block;
    float b;
    NoiseOf noise;
    unsigned overflows = 0;

    template <class List>
    TERSOR_DEVICE void reduce(const ReduceEntry& segment, std::size_t first, const List& list,
                              float factor, bool valid) {
      const UnitPosition<kRow> position{first, segment.count, block.warp().thread_rank()};
      Rows<kRow> p = {}, residual;
      if (valid) add_frames(segment, position, list, factor, p);
      const Unit out =
          Unit::of(segment, position, coder.target.values, coder.target.padding, false);
      out.load_residual(residual);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRow; ++i) {
          if constexpr (Unit::kFeedback) p[chunk][i] = p[chunk][i] + b * residual[chunk][i];
          p[chunk][i] = valid ? p[chunk][i] : float_of(kNanBits);
        }
      }
      overflows += out.write(p, residual, noise(segment, position));
    }
    TERSOR_DEVICE void flush() const {
      if constexpr (Unit::kCounts) add_counts(block.warp(), overflows, coder.target.overflows);
    }
  };

  template <class Block>
  TERSOR_DEVICE auto begin(const Block& block, const CallWords& words, Shared&) const {
    const float b = words.residual_factor();
    auto noise = unit_noise<Unit>(block, key, words);
    return Pass<Block, decltype(noise)>{*this, block, b, noise};
  }

  template <class Sum>
  TERSOR_DEVICE static void sum_written(const Sum& sum, const ReduceEntry& segment,
                                        std::size_t first, std::size_t end) {
    sum_written_values<Wire>(sum, segment, first, end);
  }

 private:
  template <class List>
  TERSOR_DEVICE static void add_frames(const ReduceEntry& segment,
                                       const UnitPosition<kRow>& position, const List& list,
                                       float factor, Rows<kRow>& sum) {
    TERSOR_UNROLL_4
    for (unsigned index = 0; index < list.frames; ++index) {
      const auto* values = reinterpret_cast<const Wire*>(list.payload(index) + segment.offset);
      Rows<kRow> row;
      load_rows<Load::kInput>(values, position, true, row);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRow; ++i)
          sum[chunk][i] = fused_multiply_add(row[chunk][i], factor, sum[chunk][i]);
      }
    }
  }
};
template <typename Wire, typename E, NoiseKind kKind, unsigned kMaxSegments, unsigned kMaxFrames>
using CastReduceKernel = ReduceFrames<CastSumCoder<Wire, E, kKind>, kMaxSegments, kMaxFrames>;

}  // namespace tersor::kernels
