#include "codecs/sums.h"

#include "kernels/scalar/convert.h"

namespace tersor::encoding {

void fill(const ValueSpan& values, float value) {
  visit_gradient_dtype(values.dtype(), [&]<typename T>(T) {
    std::ranges::fill(values.as<T>(), kernels::from_f32<T>(value));
  });
}

void poison(std::span<const ValueSpan> outputs) {
  for (const ValueSpan& output : outputs) fill(output, kernels::float_of(kernels::kNanBits));
}

void poison(std::span<const SegmentState> states) {
  for (const SegmentState& state : states)
    fill(state.residual_out, kernels::float_of(kernels::kNanBits));
}

}  // namespace tersor::encoding
