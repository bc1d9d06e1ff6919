// Residual updates of single values.
#include "kernels/topk/cpu_residual.h"

#include "kernels/quantize/formulas.h"
#include "kernels/quantize/int8.h"

#include <cstring>

namespace tersor::kernels {
namespace {

template <typename Visitor>
void visit_residual_out(const ErrorFeedback& feedback, std::size_t begin, Visitor&& visitor) {
  if (feedback.dtype == Dtype::kBf16)
    visitor(static_cast<Bf16*>(feedback.residual_out) + begin);
  else
    visitor(static_cast<float*>(feedback.residual_out) + begin);
}

/// Returns the decoded value of selected value `i`.
float decoded(const TopkRemainders& remainders, std::size_t i) {
  const TopkPayload& payload = remainders.task.payload;
  switch (remainders.task.value_dtype) {
    case Dtype::kBf16:
      return to_f32(static_cast<const Bf16*>(payload.values)[i]);
    case Dtype::kI8:
      return code_value(static_cast<const std::int8_t*>(payload.values)[i],
                        payload.scales[i / Int8Format::kBlock]);
    default:
      return remainders.chosen[i];
  }
}

/// residual = (residual - a · g) / b for a range of values.
void restore_range(const TopkScan& scan, std::size_t begin, std::size_t end) {
  const ErrorFeedback& feedback = scan.feedback;
  auto* residual = static_cast<float*>(feedback.residual_out);
  visit_gradient_dtype(scan.dtype, [&]<typename G>(G) {
    const auto* gradient = static_cast<const G*>(scan.gradient);
    for (std::size_t i = begin; i < end; ++i)
      residual[i] = topk_restore(residual[i], to_f32(gradient[i]), feedback.gradient_factor,
                                 feedback.residual_factor);
  });
}

/// Prefetches all lines first, because otherwise each scattered store waits for its own line.
template <typename E>
void prefetch(const E* residual, const std::uint16_t* index, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(residual + index[i], 1);
}

}  // namespace

void topk_correct(const TopkScan& scan, TopkCorrection correction, std::size_t tile,
                  const TopkRunView& run) {
  visit_residual_out(scan.feedback, tile * kTopkTile, [&]<typename E>(E* residual) {
    for (std::size_t i = 0; i < run.count; ++i) {
      const float p = run.value[i];
      residual[run.index[i]] =
          from_f32<E>(correction == TopkCorrection::kRestore ? p : topk_remainder(scan.clear, p));
    }
  });
}

void TopkCorrections::add(std::size_t tile, const TopkRunView& piece, TopkKeys keys) {
  const TopkCandidates found = scratch_.candidates(buffer_);
  const TopkRunView next{found.value, found.index,
                         topk_select(piece, keys, found, kTopkStripCapacity)};
  visit_residual_out(scan_.feedback, tile * kTopkTile,
                     [&](auto* residual) { prefetch(residual, next.index, next.count); });
  write();
  tile_ = tile;
  pending_ = next;
  buffer_ = 1 - buffer_;
}

void TopkCorrections::write() { topk_correct(scan_, correction_, tile_, pending_); }

void topk_store_remainders(const TopkRemainders& remainders, std::size_t tile) {
  const std::uint16_t* index = remainders.task.payload.index_in_tile;
  visit_residual_out(remainders.task.feedback, tile * kTopkTile, [&]<typename E>(E* residual) {
    prefetch(residual, index + remainders.begin, remainders.end - remainders.begin);
    for (std::size_t i = remainders.begin; i < remainders.end; ++i)
      residual[index[i]] = from_f32<E>(remainders.chosen[i] - decoded(remainders, i));
  });
}

void topk_restore_strip(const TopkScan& scan, TopkStrip strip, const TopkRunView& candidates,
                        TopkWriteBack write_back) {
  const std::size_t tile_begin = strip.begin / kTopkTile * kTopkTile;
  auto* residual = static_cast<float*>(scan.feedback.residual_out) + tile_begin;
  std::size_t begin = strip.begin;
  for (std::size_t i = 0; i < candidates.count; ++i) {
    const std::size_t index = candidates.index[i];
    if (topk_key(candidates.value[i]) < scan.limit) {
      if (write_back == TopkWriteBack::kYes) residual[index] = candidates.value[i];
    } else {
      restore_range(scan, begin, tile_begin + index);
      begin = tile_begin + index + 1;
    }
  }
  restore_range(scan, begin, strip.begin + strip.count);
}

void topk_copy_residual(const ErrorFeedback& feedback, std::size_t begin, std::size_t end) {
  const std::size_t bytes = dtype_bytes(feedback.dtype);
  std::memcpy(static_cast<std::byte*>(feedback.residual_out) + begin * bytes,
              static_cast<const std::byte*>(feedback.residual_in) + begin * bytes,
              (end - begin) * bytes);
}

}  // namespace tersor::kernels
