// lowrank: joins the two rounds, their kernels and the name. On hosts, all threads work on a
// segment at the same time.

#include "codecs/format_codec.h"
#include "codecs/registry.h"
#include "kernels/lowrank/cpu.h"
#include "kernels/lowrank/device.h"
#include "kernels/lowrank/offsets.h"
#include "kernels/scalar/convert.h"

#include <tersor/codecs/lowrank.h>

#include <array>
#include <string>

namespace tersor::encoding {
namespace {

using kernels::lowrank_stride;
using kernels::LowrankShape;
using Offset = kernels::LowrankOffset;

constexpr Choice<std::size_t, 6> kRankChoice = {
    "rank", {{{"1", 1}, {"2", 2}, {"4", 4}, {"8", 8}, {"16", 16}, {"32", 32}}}, 2};
constexpr Choice<Dtype, 2> kValuesChoice = {"values",
                                            {{{"f32", Dtype::kF32}, {"bf16", Dtype::kBf16}}}};

/// Calls visit(range) for ranges of [0, count), cut at multiples of `step`, on the available
/// threads.
template <typename Visitor>
void for_each_run(std::size_t count, std::size_t step, Threads* threads, const Visitor& visit) {
  parallel_for(
      ceil_div(count, step), threads, [&](std::size_t, std::size_t begin, std::size_t end) {
        visit(kernels::LowrankRange{begin * step, std::min(end * step, count) - begin * step});
      });
}

/// True if all values are finite and not all are zero. The caller's float mode may treat small
/// values as zeros, so the bits are tested.
bool is_finite_nonzero(std::span<const float> values) {
  bool any = false, finite = true;
  for (const float value : values) {
    any |= kernels::bits_of(value) << 1 != 0;
    finite &= kernels::is_finite(value);
  }
  return any && finite;
}

class LowrankCodec final : public FormatCodec<LowrankCodec> {
 public:
  LowrankCodec(CodecSpec spec, LowrankOptions options)
      : FormatCodec(std::move(spec), kLowrankCodecId), options_(options) {}

  static LowrankOptions read(OptionReader& reader) {
    return {.rank = reader.read(kRankChoice), .values = reader.read(kValuesChoice)};
  }

  std::span<const Exchange> exchanges() const {
    static constexpr std::array kExchanges{Exchange::kNativeSum, Exchange::kNativeSum};
    return kExchanges;
  }

  CodecTraits traits() const override { return {.divisible = false, .needs_shape = true}; }

  bool carries(const Segment& segment) const override {
    return segment.rows * segment.columns == segment.count && layout_of(segment).pays();
  }

  std::size_t memory_count(const Segment& segment) const override {
    return layout_of(segment).right();
  }

  PlanSizes sizes(const PlanRequest& request) const {
    std::size_t widest = 0;
    for (const Segment& segment : request.segments) {
      check_segment(segment);
      widest = std::max(widest, layout_of(segment).rank() * lowrank_stride(segment.columns));
    }
    const Offset end = end_of(request.segments);
    const std::size_t workspace = request.memory == Memory::kDevice ? end.workspace : widest;
    return {.workspace_bytes = workspace * sizeof(float),
            .round_state_bytes = end.basis * sizeof(float)};
  }

  RawValues raw_values(std::span<const Segment> segments, Dtype, unsigned round) const {
    const Offset end = end_of(segments);
    if (round == 0) return {Dtype::kF32, end.left};
    return {options_.values, end.right};
  }

  void device_encode_raw(const EncodeCall& call, float factor, ValueSpan values) const {
    if (call.identity.round == 0)
      return kernels::lowrank_device_project(call, options_.rank, values);
    kernels::lowrank_device_coefficients(call, options_.rank, factor, values);
  }
  void device_absorb(const DecodeCall& call, ConstValueSpan values) const {
    kernels::lowrank_device_basis(call, options_.rank, values);
  }
  void device_decode_raw(const DecodeCall& call, ConstValueSpan values) const {
    kernels::lowrank_device_decode(call, options_.rank, values);
  }

  std::size_t host_encode_raw(const EncodeCall& call, float factor, ValueSpan values) const {
    const StateWords words = words_of(call);
    for_each(call.segments, [&](std::size_t i, const Offset& offset) {
      if (call.identity.round == 0)
        write_left(call, words, i, values.as<float>().data() + offset.left);
      else
        write_right(call, words, i, offset, factor, values);
    });
    return 0;
  }

  void host_absorb(const DecodeCall& call, ConstValueSpan values) const {
    const float* projected = values.as<float>().data();
    for_each_run(call.segments.size(), 1, call.execution.threads, [&](kernels::LowrankRange run) {
      for_each(call.segments, [&](std::size_t i, const Offset& offset) {
        if (i - run.first < run.count)
          compute_basis(shape_of(call.segments[i]), projected + offset.left,
                        basis_of(call.execution, offset));
      });
    });
  }

  void host_decode_raw(const DecodeCall& call, ConstValueSpan values) const {
    for_each(call.segments, [&](std::size_t i, const Offset& offset) {
      const std::size_t count = layout_of(call.segments[i]).right();
      decode_segment(call, i, offset, values.subspan(offset.right, count));
    });
  }

 private:
  LowrankLayout layout_of(const Segment& segment) const {
    return {segment.rows, segment.columns, options_.rank};
  }

  LowrankShape shape_of(const Segment& segment) const {
    return {segment.rows, segment.columns, layout_of(segment).rank()};
  }

  Offset end_of(std::span<const Segment> segments) const {
    Offset end;
    for (const Segment& segment : segments) end += Offset::of(layout_of(segment));
    return end;
  }

  /// Calls visit(i, offsets of segment i).
  template <typename Visitor>
  void for_each(std::span<const Segment> segments, const Visitor& visit) const {
    Offset offset;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      visit(i, offset);
      offset += Offset::of(layout_of(segments[i]));
    }
  }

  static float* basis_of(const Execution& execution, const Offset& offset) {
    return reinterpret_cast<float*>(execution.round_state.data()) + offset.basis;
  }

  static float* workspace_of(const Execution& execution) {
    return reinterpret_cast<float*>(execution.workspace.data());
  }

  template <typename Call>
  static Slice whole(const Call& call, std::size_t index) {
    return {.segment = index, .count = call.segments[index].count};
  }

  void write_left(const EncodeCall& call, const StateWords& words, std::size_t index,
                  float* left) const {
    const Segment& segment = call.segments[index];
    if (!is_active(segment)) {
      std::fill_n(left, layout_of(segment).left(), 0.0f);
      return;
    }
    const LowrankShape shape = shape_of(segment);
    float* directions = workspace_of(call.execution);
    const float* memory =
        call.memories.empty() ? nullptr : call.memories[index].in.as<float>().data();
    kernels::lowrank_directions(memory, shape, segment.parameter, directions);
    const kernels::EncodeInput sent =
        sent_of(call, whole(call, index), words, kernels::Store::kCached);
    for_each_run(shape.rows, kernels::kLowrankRows, call.execution.threads,
                 [&](kernels::LowrankRange rows) {
                   kernels::lowrank_project(sent, shape, rows, directions, left);
                 });
  }

  /// Copies P with padded columns, and orthonormalises the copy.
  static void compute_basis(const LowrankShape& shape, const float* projected, float* basis) {
    const std::size_t stride = lowrank_stride(shape.rows);
    for (std::size_t j = 0; j < shape.rank; ++j) {
      float* end = std::copy_n(projected + j * shape.rows, shape.rows, basis + j * stride);
      std::fill_n(end, stride - shape.rows, 0.0f);
    }
    kernels::lowrank_orthonormalize(shape, basis);
  }

  void write_right(const EncodeCall& call, const StateWords& words, std::size_t index,
                   const Offset& offset, float factor, ValueSpan values) const {
    const Segment& segment = call.segments[index];
    const kernels::EncodeInput sent =
        sent_of(call, whole(call, index), words, kernels::Store::kCached);
    const ValueSpan own = values.subspan(offset.right, layout_of(segment).right());
    const float* basis = basis_of(call.execution, offset);
    if (!is_active(segment) || !kernels::is_finite(*basis)) {
      fill(own, is_active(segment) ? *basis : 0.0f);
      return keep_residual(sent.feedback, segment.count);
    }
    const kernels::LowrankCoefficients arguments{.sent = sent,
                                                 .shape = shape_of(segment),
                                                 .basis = basis,
                                                 .factor = factor,
                                                 .values = own.pointer(),
                                                 .dtype = own.dtype()};
    for_each_run(
        segment.columns, kernels::kLowrankStrip, call.execution.threads,
        [&](kernels::LowrankRange columns) { kernels::lowrank_coefficients(arguments, columns); });
  }

  void decode_segment(const DecodeCall& call, std::size_t index, const Offset& offset,
                      ConstValueSpan values) const {
    const LowrankShape shape = shape_of(call.segments[index]);
    float* coefficients = workspace_of(call.execution);
    pad_columns(values, shape, coefficients);
    if (!call.memories.empty()) update_memory(call.memories[index], shape, coefficients);
    const kernels::LowrankDecode arguments{
        .shape = shape,
        .basis = basis_of(call.execution, offset),
        .coefficients = coefficients,
        .to = decoded_of(call, whole(call, index), kernels::Store::kCached)};
    for_each_run(shape.rows, kernels::kLowrankRows, call.execution.threads,
                 [&](kernels::LowrankRange rows) { kernels::lowrank_decode(arguments, rows); });
  }

  /// Converts W to f32 with padded columns.
  static void pad_columns(ConstValueSpan values, const LowrankShape& shape, float* coefficients) {
    const std::size_t stride = lowrank_stride(shape.columns);
    for (std::size_t j = 0; j < shape.rank; ++j) {
      float* column = coefficients + j * stride;
      const ConstValueSpan own = values.subspan(j * shape.columns, shape.columns);
      visit_gradient_dtype(own.dtype(), [&]<typename T>(T) {
        std::ranges::transform(own.as<T>(), column, [](T value) { return kernels::to_f32(value); });
      });
      std::fill(column + shape.columns, column + stride, 0.0f);
    }
  }

  /// A zero or non-finite sum carries no information for the next step; the memory is then
  /// selected.
  static void update_memory(const SegmentMemory& memory, const LowrankShape& shape,
                            const float* coefficients) {
    const std::size_t stride = lowrank_stride(shape.columns);
    const std::span<float> out = memory.out.as<float>();
    if (!is_finite_nonzero({coefficients, shape.rank * stride})) {
      if (memory.in.pointer() != memory.out.pointer())
        std::ranges::copy(memory.in.as<float>(), out.begin());
      return;
    }
    for (std::size_t j = 0; j < shape.rank; ++j)
      std::copy_n(coefficients + j * stride, shape.columns, out.data() + j * shape.columns);
  }

  void check_segment(const Segment& segment) const {
    if (carries(segment)) return;
    const std::string count = std::to_string(segment.count) + " values";
    if (segment.rows * segment.columns != segment.count || segment.count == 0)
      fail(*this,
           "it encodes matrices: give rows and columns to add() of the reducer; a segment of " +
               count + " has " + std::to_string(segment.rows) + " rows and " +
               std::to_string(segment.columns) + " columns");
    fail(*this,
         "a matrix of " + std::to_string(segment.rows) + " rows and " +
             std::to_string(segment.columns) +
             " columns is too small: rank * (rows + columns) would be more than a quarter of its " +
             count + "; use a smaller rank or bf16");
  }

  LowrankOptions options_;
};
static_assert(AbsorbingFormat<LowrankCodec>);

}  // namespace

CodecEntry lowrank_entry() {
  return entry_of<LowrankCodec>(
      {.name = "lowrank",
       .id = kLowrankCodecId,
       .summary = "a matrix as the product of two narrow matrices (PowerSGD)",
       .options = {kRankChoice.option(), kValuesChoice.option()}});
}

}  // namespace tersor::encoding
