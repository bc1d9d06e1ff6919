// The decode kernel of cast formats, and the resident blocks of all cast kernels. Grid and memory
// traffic are described in kernels/cast/body.cuh.
#pragma once

#include "kernels/cast/formats.h"
#include "kernels/device/call.cuh"
#include "kernels/device/frame_kernels.cuh"
#include "kernels/device/queue.cuh"
#include "kernels/device/units.cuh"

#include <cstdint>

namespace tersor::kernels {

/// Minimum blocks per multiprocessor, by architecture: the maximum without register spills.
struct CastResident {
  unsigned from;
  unsigned encode;    // without feedback
  unsigned feedback;  // encode with feedback
  unsigned copy, decode, reduce;
  unsigned random;  // reduce with noise
  unsigned any;     // encode and reduce with NoiseKind::kAny: two counters per value
};
constexpr CastResident kCastTuning[] = {
    {.from = 0,
     .encode = 4,
     .feedback = 3,
     .copy = 4,
     .decode = 4,
     .reduce = 3,
     .random = 2,
     .any = 1},
    {.from = 1200,
     .encode = 3,
     .feedback = 3,
     .copy = 4,
     .decode = 4,
     .reduce = 3,
     .random = 2,
     .any = 1},
};
constexpr CastResident kCastResident = tuning_of(kCastTuning);

/// Decodes to values of type T. See DecodeFrames.
template <typename Wire, typename T, DecodeMode kMode>
struct CastReader {
  using Order = RunOrder;
  using Policy = RunsPolicy<kCastResident.decode>;
  using Value = T;
  static constexpr bool kSumsCodes = false;
  static constexpr unsigned kRow = 16 / sizeof(T);

  template <class Block, class List>
  struct Pass {
    const Block& block;
    const List& list;
    float factor;
    bool valid;

    template <class Sums>
    TERSOR_DEVICE void decode(const DecodeEntry& segment, std::size_t first, const Sums&) const {
      const UnitPosition<kRow> position{first, segment.count, block.warp().thread_rank()};
      auto* output = static_cast<T*>(segment.output);
      const bool aligned = is_aligned_for<T, kRow>(output);
      Rows<kRow> sum = {};
      if constexpr (kMode == DecodeMode::kAdd)
        load_rows<Load::kAny>(output, position, aligned, sum);
      if (!valid) fill_rows<kRow>(sum, float_of(kNanBits));
      for (unsigned index = 0; valid && index < list.frames; ++index)
        add_frame(index, segment, position, sum);
      store_rows(sum, reinterpret_cast<CastStored<Wire, T>*>(output), position, aligned);
    }
    template <class Sums>
    TERSOR_DEVICE void flush(const Sums&) const {}

    /// Adds a frame. The first frame is assigned as a product. Raw values may be stored in the
    /// output itself.
    TERSOR_DEVICE void add_frame(unsigned index, const DecodeEntry& segment,
                                 const UnitPosition<kRow>& position, Rows<kRow>& sum) const {
      const auto* values = reinterpret_cast<const Wire*>(list.payload(index) + segment.offset);
      const bool assigns = kMode == DecodeMode::kAssign && index == 0;
      Rows<kRow> rows;
      load_rows<Load::kAny>(values, position, is_aligned_for<Wire, kRow>(values), rows);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRow; ++i)
          sum[chunk][i] = assigns ? rows[chunk][i] * factor
                                  : fused_multiply_add(rows[chunk][i], factor, sum[chunk][i]);
      }
    }
  };

  template <class Block, class List>
  TERSOR_DEVICE static Pass<Block, List> begin(const Block& block, const List& list, float factor,
                                               bool valid) {
    return {block, list, factor, valid};
  }
};
template <typename Wire, typename T, DecodeMode kMode, unsigned kMaxSegments, unsigned kMaxFrames>
using CastDecodeKernel = DecodeFrames<CastReader<Wire, T, kMode>, kMaxSegments, kMaxFrames>;

}  // namespace tersor::kernels
