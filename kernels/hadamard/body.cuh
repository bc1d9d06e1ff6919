// The kernels of hadamard. A warp processes 16 blocks of one segment, four at once. Each thread
// holds 32 values of one block in registers and shared memory between the single read and the
// single write. The number of bits per code is fixed per launch.
//
// Grid: as many blocks of 128 threads as are resident, each warp striding over the units. Memory
// traffic in bytes per value, for f32 and 2 bits:
//   Encode: 4 read and 0.26 written. Error feedback adds 4 read and 4 written.
//   Decode: 0.26 read per frame and 4 written.
//   Reduce: 0.26 read per frame and 0.26 written. The owner's residual adds 4 read and 4 written.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/queue.cuh"
#include "kernels/device/rotation.cuh"
#include "kernels/device/units.cuh"
#include "kernels/hadamard/codes.cuh"

#include <tersor/align.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

constexpr unsigned kHadamardThreads = 128, kHadamardWarps = kHadamardThreads / kWarpThreads;
/// Blocks per multiprocessor: the maximum without register spills. A thread holds 32 values of y
/// and, with feedback, 32 values of p.
template <typename E>
constexpr unsigned kHadamardResident = std::is_same_v<E, NoResidual> ? 4 : 3;
/// Blocks per multiprocessor for decode, by architecture.
struct HadamardResident {
  unsigned from;
  unsigned decode;
};
constexpr HadamardResident kHadamardTuning[] = {{.from = 0, .decode = 4},
                                                {.from = 1200, .decode = 3}};
constexpr unsigned kHadamardUnitValues = kRotationUnit * kRotationBlock;

/// Writes codes, scale and residual of one block, for encode and reduce.
template <typename E>
struct HadamardBlock {
  static constexpr bool kFeedback = !std::is_same_v<E, NoResidual>;

  RotationPosition position;
  std::byte* sections;  // of the segment
  const E* residual_in;
  E* residual_out;
  bool keeps;  // True if codes and scale are 0 and the residual is kept

  /// Creates a HadamardBlock from an EncodeEntry or a ReduceEntry.
  template <class Entry>
  TERSOR_DEVICE static HadamardBlock of(const Entry& segment, const RotationPosition& position,
                                        std::byte* payload, bool keeps) {
    return {position, payload + segment.offset, static_cast<const E*>(segment.residual_in),
            static_cast<E*>(segment.residual_out), keeps};
  }

  TERSOR_DEVICE void load_residual(RotatedValues& residual) const {
    if constexpr (kFeedback) load_rotated<Load::kAny>(residual_in, position, residual);
  }

  /// p = a · p + b · residual. Missing values stay +0.
  TERSOR_DEVICE void add_residual(float a, float b, const RotatedValues& residual,
                                  RotatedValues& p) const {
    if constexpr (kFeedback) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRotationValues; ++i) p[i] = a * p[i] + b * residual[i];
    }
    clear_missing(p);
  }

  /// Returns the number of finite values that decode to NaN.
  template <class Warp>
  TERSOR_DEVICE unsigned write(const Rotation<Warp>& rotation, unsigned bits,
                               const RotationSigns& signs, const RotatedValues& p) const {
    using enum RowLayout;
    const HadamardRange range{rotation.maximum(p)};
    const unsigned overflows = range.poisoned() && !keeps ? count_finite(p) : 0;
    RotatedValues y;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) y[i] = p[i] * range.input_scale();
    signs.flip(y);
    rotation.template rotate<kContiguous, kStrided>(y);
    visit_code_bits(bits,
                    [&]<unsigned kBits>(CodeBits<kBits>) { code<kBits>(rotation, range, y); });
    if constexpr (kFeedback) {
      rotation.template rotate<kStrided, kContiguous>(y);
      signs.flip(y);
      store_residual(range, p, y);
    }
    return overflows;
  }

 private:
  TERSOR_DEVICE void clear_missing(RotatedValues& p) const {
    if (position.is_whole) return;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) p[i] = is_inside(i) ? p[i] : 0.0f;
  }

  TERSOR_DEVICE bool is_inside(unsigned i) const {
    return i % kRotationRow < position.row(i / kRotationRow).left;
  }

  TERSOR_DEVICE unsigned count_finite(const RotatedValues& p) const {
    unsigned count = 0;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) count += is_inside(i) && is_finite(p[i]);
    return count;
  }

  /// Writes codes and scale of y, and replaces y by the decoded values.
  template <unsigned kBits, class Warp>
  TERSOR_DEVICE void code(const Rotation<Warp>& rotation, const HadamardRange& range,
                          RotatedValues& y) const {
    RotatedValues terms;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i)
      terms[i] = kBits == 1 ? fabsf(y[i]) : y[i] * y[i];
    const HadamardScale scale = hadamard_scale<kBits>(range, rotation.tree_sum(terms));
    const HadamardCodes<kBits> codes(y, scale.inverse, hadamard_unit(scale.sent, 1.0f));
    codes.store_to(rotation, sections, position, !keeps && !range.is_special());
    const std::uint16_t sent = range.is_special() ? range.special_scale() : scale.sent;
    if (position.exists() && position.thread == 0)
      store(reinterpret_cast<std::uint16_t*>(sections + scale_offset(position)),
            keeps ? std::uint16_t{0} : sent);
  }

  /// Writes the new residual. `decoded` holds the decoded values of a block with codes.
  TERSOR_DEVICE void store_residual(const HadamardRange& range, const RotatedValues& p,
                                    RotatedValues& decoded) const {
    if (keeps || range.poisoned()) {
      if (residual_in == residual_out) return;
      TERSOR_UNROLL
      for (unsigned r = 0; r < kRotationRows; ++r)
        copy_row<E, kRotationRow>(residual_in, residual_out, position.row(r));
      return;
    }
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i)
      decoded[i] = range.underflows() ? p[i] : p[i] - decoded[i];
    store_rotated(decoded, residual_out, position);
  }
};

/// Writes the padding after the scales, together with the segment's last unit.
template <class Warp>
TERSOR_DEVICE void pad_scales(const Warp& warp, std::byte* sections, std::size_t first,
                              std::size_t count) {
  if (count - first > kHadamardUnitValues) return;
  const HadamardLayout layout{count, 1};
  const std::size_t block = layout.blocks() + warp.thread_rank();
  if (block * sizeof(std::uint16_t) < layout.planes_offset())
    store(reinterpret_cast<std::uint16_t*>(sections) + block, std::uint16_t{0});
}

/// Adds the bytes written by a warp for a segment's values [first, end) to the frame's sum.
template <class Sum, class Entry>
TERSOR_DEVICE void sum_written_rotations(const Sum& sum, const Entry& segment, unsigned bits,
                                         std::size_t first, std::size_t end) {
  const std::size_t from = first / kRotationBlock, to = ceil_div(end, kRotationBlock);
  const std::size_t planes = segment.offset + HadamardLayout{segment.count, bits}.planes_offset();
  const std::size_t bytes = bits * kRotationBlock / 8;  // per block
  sum.add_bytes(segment.offset + from * sizeof(std::uint16_t),
                segment.offset + align_up(to * sizeof(std::uint16_t), 16));
  sum.add_bytes(planes + from * bytes, planes + to * bytes);
}

template <typename G, typename E, unsigned kCapacity>
struct HadamardEncodeKernel : LaunchBounds<kHadamardThreads, kHadamardResident<E>> {
  static constexpr unsigned kRun = 2;
  struct Shared {
    RotationSpace space[kHadamardWarps];
    ThreadSums<kHadamardThreads> written;
  };

  SegmentTable<EncodeEntry, kCapacity> table;
  std::byte* payload;
  std::uint64_t* overflows;  // null: not counted
  CallWords words;
  FrameSeal seal;
  unsigned bits;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block, words.step_of());
    unsigned count = 0;
    const WrittenSum sum(block, seal, shared.written);
    for_each_run<kHadamardUnitValues>(
        block, table, DoNothing{},
        [&](const EncodeEntry& segment, std::size_t first) {
          const auto warp = block.warp();
          const Rotation rotation(
              warp, shared.space[block.warp_rank()],
              {words.step_of(), segment.parameter, segment.first_index + first});
          count += encode_unit(rotation, segment, first);
          pad_scales(warp, payload + segment.offset, first, segment.count);
        },
        [&](const EncodeEntry& segment, std::size_t first, std::size_t end) {
          sum_written_rotations(sum, segment, bits, first, end);
        });
    add_counts(block.warp(), count, overflows);
    sum.flush();
    seal.close(block);
  }

 private:
  template <class Warp>
  TERSOR_DEVICE unsigned encode_unit(const Rotation<Warp>& rotation, const EncodeEntry& segment,
                                     std::size_t first) const {
    const bool inactive = is_inactive(segment);
    // Loaded for each unit, to save registers between units.
    const float a = words.gradient_factor(), b = words.residual_factor();
    unsigned count = 0;
    rotation.for_each_block(
        first, segment.count, [&](unsigned index, const RotationPosition& position) {
          const RotationSigns signs = rotation.signs(index);
          const auto out = HadamardBlock<E>::of(segment, position, payload, inactive);
          RotatedValues p, residual;
          load_rotated<Load::kInput>(static_cast<const G*>(segment.gradient), position, p);
          out.load_residual(residual);
          out.add_residual(a, b, residual, p);
          count += out.write(rotation, bits, signs, p);
        });
    return count;
  }
};

struct HadamardDecodeEntry : DecodeEntry {
  std::uint64_t first_index;
};

template <typename T, unsigned kMaxSegments, unsigned kMaxFrames>
struct HadamardDecodeKernel : LaunchBounds<kHadamardThreads, tuning_of(kHadamardTuning).decode> {
  static constexpr unsigned kRun = 2;
  struct Shared {
    RotationSpace space[kHadamardWarps];
    ThreadSums<kHadamardThreads> read;
  };

  SegmentTable<HadamardDecodeEntry, kMaxSegments> table;
  FrameList<kMaxFrames> list;
  float factor;
  unsigned bits;
  DecodeMode mode;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    const bool valid = list.check(block);
    const std::uint32_t step = list.step_in_header();
    const ReadSums sums(block, list, valid, shared.read);
    for_each_run<kHadamardUnitValues>(
        block, table,
        [&](std::uint32_t round, unsigned iteration) { sums.add_round(round, iteration); },
        [&](const HadamardDecodeEntry& segment, std::size_t first) {
          const auto warp = block.warp();
          decode_unit(Rotation(warp, shared.space[block.warp_rank()],
                               {step, segment.parameter, segment.first_index + first}),
                      segment, first, valid);
        },
        DoNothing{});
    close_decoded<T>(block, table, sums, list);
  }

 private:
  template <class Warp>
  TERSOR_DEVICE void decode_unit(const Rotation<Warp>& rotation, const HadamardDecodeEntry& segment,
                                 std::size_t first, bool valid) const {
    auto* output = static_cast<T*>(segment.output);
    rotation.for_each_block(
        first, segment.count, [&](unsigned index, const RotationPosition& position) {
          const RotationSigns signs = rotation.signs(index);
          RotatedValues w;
          sum_frames(rotation, list, {segment.offset, bits, factor}, position, w);
          signs.flip(w);
          if (mode == DecodeMode::kAdd) add_output(output, position, w);
          if (!valid) fill_nan(w);
          store_rotated(w, output, position);
        });
  }

  TERSOR_DEVICE static void add_output(const T* output, const RotationPosition& position,
                                       RotatedValues& w) {
    RotatedValues old;
    load_rotated<Load::kAny>(output, position, old);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) w[i] = old[i] + w[i];
  }

  TERSOR_DEVICE static void fill_nan(RotatedValues& w) {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) w[i] = float_of(kNanBits);
  }
};

template <typename E, unsigned kMaxSegments, unsigned kMaxFrames>
struct HadamardReduceKernel : LaunchBounds<kHadamardThreads, kHadamardResident<E>> {
  static constexpr unsigned kRun = 2;
  struct Shared {
    RotationSpace space[kHadamardWarps];
    ThreadSums<kHadamardThreads> written;
    ThreadSums<kHadamardThreads> read;
  };

  SegmentTable<ReduceEntry, kMaxSegments> table;
  FrameList<kMaxFrames> list;
  std::byte* payload;
  std::uint64_t* overflows;  // null: not counted
  CallWords words;
  FrameSeal seal;
  float factor;
  unsigned bits;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    const std::uint32_t step = list.step_in_header();
    seal.write(block, step);
    const bool valid = list.check(block);
    const float b = words.residual_factor();
    unsigned count = 0;
    const ReadSums sums(block, list, valid, shared.read);
    const WrittenSum written(block, seal, shared.written);
    for_each_run<kHadamardUnitValues>(
        block, table,
        [&](std::uint32_t round, unsigned iteration) { sums.add_round(round, iteration); },
        [&](const ReduceEntry& segment, std::size_t first) {
          const auto warp = block.warp();
          const Rotation rotation(warp, shared.space[block.warp_rank()],
                                  {step, segment.parameter, segment.first_index + first});
          count += reduce_unit(rotation, segment, first, b, valid);
          pad_scales(warp, payload + segment.offset, first, segment.count);
        },
        [&](const ReduceEntry& segment, std::size_t first, std::size_t end) {
          sum_written_rotations(written, segment, bits, first, end);
        });
    add_counts(block.warp(), count, overflows);
    written.flush();
    close_reduced<E>(block, table, sums, list, seal);
  }

 private:
  template <class Warp>
  TERSOR_DEVICE unsigned reduce_unit(const Rotation<Warp>& rotation, const ReduceEntry& segment,
                                     std::size_t first, float b, bool valid) const {
    unsigned count = 0;
    rotation.for_each_block(
        first, segment.count, [&](unsigned index, const RotationPosition& position) {
          const RotationSigns signs = rotation.signs(index);
          const auto out = HadamardBlock<E>::of(segment, position, payload, false);
          RotatedValues p, residual;
          out.load_residual(residual);  // under way while the frames are added
          sum_frames(rotation, list, {segment.offset, bits, factor}, position, p);
          signs.flip(p);
          out.add_residual(1.0f, b, residual, p);
          if (!valid) p[0] = float_of(kNanBits);
          count += out.write(rotation, bits, signs, p);
        });
    return valid ? count : 0;
  }
};

}  // namespace tersor::kernels
