// none on the CPU: the loops of kernels/cast/loops-inl.h, once for each instruction set.

#include "kernels/none/cpu.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/none/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/cast/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Copies what needs no arithmetic.
template <typename T>
void copy_range(const CastEncode& arguments) {
  if (arguments.store == Store::kCached && arguments.count > 0) {
    std::memmove(arguments.values, arguments.gradient, arguments.count * sizeof(T));
    return;
  }
  Input<T, kTile> gradients(arguments.gradient, arguments.count);
  Output<T, kTile> values(arguments.values, arguments.store);
  for (std::size_t first = 0; first < arguments.count; first += kTile) {
    const std::size_t count = std::min(kTile, arguments.count - first);
    std::copy_n(gradients.tile(first), kTile, values.tile(count));
    values.take(count);
  }
}

template <typename T, typename E>
std::size_t none_encode_range(const CastEncode& arguments) {
  if (!std::is_same_v<E, Absent> || arguments.factor != 1)
    return cast_encode_range<T, T, E>(arguments);
  copy_range<T>(arguments);
  return 0;
}

std::size_t none_encode_on(const CastEncode& arguments) {
  const DefaultFloatMode mode;
  return visit_gradient_dtype(arguments.dtype, [&](auto gradient) {
    return visit_residual(arguments.feedback, [&](auto residual) {
      return none_encode_range<decltype(gradient), decltype(residual)>(arguments);
    });
  });
}

void none_decode_on(const CastDecode& arguments) {
  const DefaultFloatMode mode;
  visit_gradient_dtype(arguments.dtype, [&](auto value) {
    cast_decode_range<decltype(value), decltype(value)>(arguments);
  });
}

std::size_t none_reduce_on(const CastReduce& arguments, Dtype dtype) {
  return visit_gradient_dtype(dtype,
                              [&](auto value) { return cast_reduce<decltype(value)>(arguments); });
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

HWY_EXPORT(none_encode_on);
HWY_EXPORT(none_decode_on);
HWY_EXPORT(none_reduce_on);

std::size_t none_encode(const CastEncode& arguments) {
  return TERSOR_DISPATCH(none_encode_on)(arguments);
}
void none_decode(const CastDecode& arguments) { TERSOR_DISPATCH(none_decode_on)(arguments); }
std::size_t none_reduce(const CastReduce& arguments, Dtype dtype) {
  return TERSOR_DISPATCH(none_reduce_on)(arguments, dtype);
}

}  // namespace tersor::kernels
#endif
