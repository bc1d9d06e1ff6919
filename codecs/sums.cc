#include "codecs/sums.h"

#include "kernels/scalar/convert.h"

namespace tersor::encoding {
namespace {

void fill_with_nan(const ValueSpan& values) {
  visit_gradient_dtype(values.dtype(), [&]<typename T>(T) {
    const T nan = kernels::from_f32<T>(kernels::float_of(kernels::kNanBits));
    std::fill_n(reinterpret_cast<T*>(values.pointer()), values.count(), nan);
  });
}

}  // namespace

void poison(std::span<const ValueSpan> outputs) {
  for (const ValueSpan& output : outputs) fill_with_nan(output);
}

void poison(std::span<const SegmentState> states) {
  for (const SegmentState& state : states) fill_with_nan(state.residual_out);
}

}  // namespace tersor::encoding
