// Implements combine.h.
#include "comm/transport/host/combine.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/common/convert.h"

namespace tersor::host {
namespace {

float sum_of(float one, float other) { return one + other; }

float maximum_of(float one, float other) {
  if (one != one || other != other) return std::numeric_limits<float>::quiet_NaN();
  if (one == other)  // the bits differ for zeros only
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(one) &
                                std::bit_cast<std::uint32_t>(other));
  return one > other ? one : other;
}

struct Sum {
  float operator()(float one, float other) const { return sum_of(one, other); }
  Bf16 operator()(Bf16 one, Bf16 other) const {
    return kernels::from_f32<Bf16>(sum_of(kernels::to_f32(one), kernels::to_f32(other)));
  }
  F16 operator()(F16 one, F16 other) const {
    return kernels::from_f32<F16>(sum_of(kernels::to_f32(one), kernels::to_f32(other)));
  }
  template <typename Integer>
  Integer operator()(Integer one, Integer other) const {
    return static_cast<Integer>(static_cast<std::uint32_t>(one) +
                                static_cast<std::uint32_t>(other));
  }
};

struct Maximum {
  float operator()(float one, float other) const { return maximum_of(one, other); }
  Bf16 operator()(Bf16 one, Bf16 other) const {
    return kernels::from_f32<Bf16>(maximum_of(kernels::to_f32(one), kernels::to_f32(other)));
  }
  F16 operator()(F16 one, F16 other) const {
    return kernels::from_f32<F16>(maximum_of(kernels::to_f32(one), kernels::to_f32(other)));
  }
  template <typename Integer>
  Integer operator()(Integer one, Integer other) const {
    return one > other ? one : other;
  }
};

template <typename T, typename Operation>
void combine_typed(ValueSpan into, ConstValueSpan from) {
  const auto results = into.as<T>();
  const auto others = from.as<T>();
  for (std::size_t i = 0; i < results.size(); ++i) results[i] = Operation{}(results[i], others[i]);
}

template <typename Operation>
void combine(ValueSpan into, ConstValueSpan from) {
  switch (into.dtype()) {
    case Dtype::kF32:
      return combine_typed<float, Operation>(into, from);
    case Dtype::kBf16:
      return combine_typed<Bf16, Operation>(into, from);
    case Dtype::kF16:
      return combine_typed<F16, Operation>(into, from);
    case Dtype::kI8:
      return combine_typed<std::int8_t, Operation>(into, from);
    case Dtype::kI32:
      return combine_typed<std::int32_t, Operation>(into, from);
    case Dtype::kU32:
      return combine_typed<std::uint32_t, Operation>(into, from);
  }
}

}  // namespace

void add_values(ValueSpan into, ConstValueSpan from) { combine<Sum>(into, from); }

void maximum_values(ValueSpan into, ConstValueSpan from) { combine<Maximum>(into, from); }

}  // namespace tersor::host
