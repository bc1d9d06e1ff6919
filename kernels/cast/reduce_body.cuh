// The reduce kernel of cast formats. Grid and memory traffic are described in
// kernels/cast/body.cuh.
#pragma once

#include "kernels/cast/body.cuh"

#include <cstddef>

namespace tersor::kernels {

/// Encodes sums with residuals of type E. See ReduceFrames.
template <typename Wire, typename E, NoiseKind kKind>
struct CastSumCoder {
  static constexpr unsigned kRow = 8 / sizeof(Wire);  // wider rows: more columns to sum
  static constexpr unsigned kChunks = kUnitChunks<kRow>;
  using Unit = CastUnit<Wire, E, kKind, kRow>;
  using Order = InUnitRanges;
  using Policy = ReducePolicy<kKind == NoiseKind::kAny     ? kCastResident.reduced_any
                              : kKind == NoiseKind::kUnits ? kCastResident.random
                                                           : kCastResident.reduce>;
  using Residual = E;
  using Bytes = RowBytes<8>;
  using Shared =
      UnitColumns<HeldWords<2, kChunks, 1, kWarpThreads * 2 / kChecksumColumns>, Policy::kThreads>;

  CastTarget target;
  WideKeyOf<kKind> key;

  template <class Block, class NoiseOf>
  struct Pass {
    const CastSumCoder& coder;
    const Block& block;
    float b;
    NoiseOf noise;
    unsigned overflows = 0;

    template <class List, class Sums>
    TERSOR_DEVICE void reduce(const ReduceEntry& segment, std::size_t first, const List& list,
                              float factor, bool sound, Sums& sums) {
      const UnitPosition<kRow> position{first, segment.count, block.warp().thread_rank()};
      const bool adds = sums.start(segment.offset + first * sizeof(Wire), position.is_whole());
      Rows<kRow> p = {}, residual;
      if (sound) add_all_frames(segment, position, list, factor, sums, adds, p);
      const Unit out =
          Unit::of(segment, position, coder.target.values, coder.target.padding, false);
      out.load_residual(residual);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRow; ++i) {
          if constexpr (Unit::kFeedback) p[chunk][i] = p[chunk][i] + b * residual[chunk][i];
          p[chunk][i] = sound ? p[chunk][i] : float_of(kNanBits);
        }
      }
      overflows += out.write(p, residual, noise(segment, position));
      if (!adds) return sum_written_values<Wire>(sums, segment, first, first + position.values());
      Bytes sent[kChunks];
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kChunks; ++chunk)
        sent[chunk] = pack_row<typename Unit::Stored>(p[chunk]);
      sums.add_written(sent);
    }
    TERSOR_DEVICE void leave() const {
      if constexpr (Unit::kCounts) add_counts(block.warp(), overflows, coder.target.overflows);
    }
  };

  template <class Block>
  TERSOR_DEVICE auto begin(const Block& block, const CallWords& words, Shared&) const {
    const float b = words.residual_factor();
    auto noise = unit_noise<Unit>(block, key, words);
    return Pass<Block, decltype(noise)>{*this, block, b, noise};
  }

  /// reduce adds all bytes.
  template <class Sum>
  TERSOR_DEVICE static void sum_rest(const Sum&, const ReduceEntry&, std::size_t, std::size_t) {}

 private:
  template <class List, class Sums>
  TERSOR_DEVICE static void add_all_frames(const ReduceEntry& segment,
                                           const UnitPosition<kRow>& position, const List& list,
                                           float factor, const Sums& sums, bool adds,
                                           Rows<kRow>& sum) {
    if (!position.is_whole()) {
      TERSOR_KEEP_LOOP
      for (unsigned index = 0; index < list.frames; ++index) {
        const auto* values = reinterpret_cast<const Wire*>(list.payload(index) + segment.offset);
        Rows<kRow> row;
        load_rows<Load::kInput>(values, position, true, row);
        add(row, factor, sum);
      }
      return;
    }
    const std::size_t at = segment.offset + position.offset(0) * sizeof(Wire);
    if (adds && sums.sums_reads())
      add_frames(list, at, factor, sum,
                 [&, weights = sums.weights()](unsigned index, const auto& bytes) {
                   sums.add(1 + index, bytes, weights);
                 });
    else
      add_frames(list, at, factor, sum, DoNothing{});
  }

  /// This thread's rows of a frame.
  struct Frame {
    Bytes row[kChunks];
  };

  template <class List, class Hold>
  TERSOR_DEVICE static void add_frames(const List& list, std::size_t at, float factor,
                                       Rows<kRow>& sum, const Hold& hold) {
    for_each_frame<8 / sizeof(Wire)>(
        list.frames,
        [&](unsigned index) {
          Frame frame;
          const std::byte* from = list.payload(index) + at;
          TERSOR_UNROLL
          for (unsigned chunk = 0; chunk < kChunks; ++chunk)
            frame.row[chunk] =
                Bytes::load_from<Load::kInput>(from + chunk * sizeof(Bytes) * kWarpThreads);
          return frame;
        },
        [&](unsigned index, const Frame& frame) {
          Rows<kRow> row;
          TERSOR_UNROLL
          for (unsigned chunk = 0; chunk < kChunks; ++chunk)
            unpack_row<Wire>(frame.row[chunk], row[chunk]);
          add(row, factor, sum);
          hold(index, frame.row);
        });
  }

  TERSOR_DEVICE static void add(const Rows<kRow>& row, float factor, Rows<kRow>& sum) {
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kChunks; ++chunk) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i)
        sum[chunk][i] = fused_multiply_add(row[chunk][i], factor, sum[chunk][i]);
    }
  }
};
template <typename Wire, typename E, NoiseKind kKind, unsigned kMostSegments, unsigned kMostFrames>
using CastReduceKernel = ReduceFrames<CastSumCoder<Wire, E, kKind>, kMostSegments, kMostFrames>;

}  // namespace tersor::kernels
