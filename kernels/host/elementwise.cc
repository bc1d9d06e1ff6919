// Implements kernels/host/elementwise.h, once per instruction set.

#include "kernels/host/elementwise.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/elementwise.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/host/tiles-inl.h"
#include "kernels/scalar/float_mode.h"

#include <algorithm>
#include <numeric>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kTile = 256;  // values

/// Calls result(first, old values, target) for each tile.
template <typename T, class Result>
HWY_INLINE void update(void* values, std::size_t count, Result&& result) {
  using Stored = std::conditional_t<std::is_same_v<T, F16>, IeeeF16, T>;
  Input<T, kTile> old_values(values, count);
  Output<Stored, kTile> new_values(values, Store::kCached);
  for (std::size_t first = 0; first < count; first += kTile) {
    const std::size_t valid = std::min(kTile, count - first);
    const T* old = old_values.tile(first);
    Stored* target = new_values.tile(valid);
    result(first, old, target);
    new_values.commit(valid);
  }
}

template <typename T>
void scale(void* values, std::size_t count, float factor) {
  const VF32 factors = hn::Set(F32(), factor);
  update<T>(values, count, [&](std::size_t, const T* old, auto* target) HWY_ATTR {
    for (std::size_t i = 0; i < kTile; i += kLanes)
      store_values(hn::Mul(load_values(old + i), factors), target + i);
  });
}

/// values = operation(values, others)
template <typename T, class Operation>
HWY_INLINE void combine(void* values, const void* others, std::size_t count, Operation operation) {
  Input<T, kTile> right_values(others, count);
  update<T>(values, count, [&](std::size_t first, const T* left, auto* target) HWY_ATTR {
    const T* right = right_values.tile(first);
    for (std::size_t i = 0; i < kTile; i += kLanes)
      store_values(operation(load_values(left + i), load_values(right + i)), target + i);
  });
}

HWY_INLINE VF32 larger(VF32 a, VF32 b) {
  const VF32 unequal = hn::IfThenElse(hn::Lt(a, b), b, a);
  const VF32 ordered = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), unequal);
  const VF32 sum = hn::Add(a, b);  // NaN if either is NaN or if infinities cancel
  const auto numbers = hn::And(hn::Eq(a, a), hn::Eq(b, b));
  return hn::IfThenElse(numbers, ordered, sum);
}

constexpr std::size_t kSums = 16;  // parallel sums of squares: value i goes to sum i mod 16

#if TERSOR_PORTABLE

class SquareSums {
 public:
  HWY_INLINE void add(std::size_t i, VF32 value) {
    const double wide = hn::GetLane(value);
    sums_[i % kSums] += wide * wide;
  }
  HWY_INLINE void store(double* sums) const { std::copy_n(sums_, kSums, sums); }

 private:
  double sums_[kSums] = {};
};

#else

class SquareSums {
 public:
  HWY_INLINE void add(std::size_t i, VF32 value) {
    const std::size_t first = i % kSums / kHalf;
    add_half(first, hn::PromoteTo(F64(), hn::LowerHalf(HalfF32(), value)));
    add_half(first + 1, hn::PromoteTo(F64(), hn::UpperHalf(HalfF32(), value)));
  }
  HWY_INLINE void store(double* sums) const {
    for (std::size_t k = 0; k < kSums / kHalf; ++k) hn::StoreU(sums_[k], F64(), sums + k * kHalf);
  }

 private:
  using HalfF32 = hn::Half<F32>;
  using F64 = hn::Rebind<double, HalfF32>;
  using VF64 = hn::Vec<F64>;
  static constexpr std::size_t kHalf = kLanes / 2;

  HWY_INLINE void add_half(std::size_t k, VF64 value) {
    sums_[k] = hn::Add(sums_[k], hn::Mul(value, value));
  }

  VF64 sums_[kSums / kHalf] = {};
};

#endif

template <typename T>
double squares(const void* values, std::size_t count) {
  SquareSums squares;
  Input<T, kTile> tiles(values, count);
  for (std::size_t first = 0; first < count; first += kTile) {
    const T* tile = tiles.tile(first);
    TERSOR_UNROLL
    for (std::size_t i = 0; i < kTile; i += kLanes) squares.add(i, load_values(tile + i));
  }
  double sums[kSums];
  squares.store(sums);
  return std::accumulate(sums, sums + kSums, 0.0);
}

/// Like combine, for integers. Compilers vectorise this loop.
template <typename T, class Operation>
HWY_INLINE void combine_integers(void* values, const void* others, std::size_t count,
                                 Operation operation) {
  auto* left = static_cast<T*>(values);
  const auto* right = static_cast<const T*>(others);
  for (std::size_t i = 0; i < count; ++i) left[i] = operation(left[i], right[i]);
}

/// Applies the operation for the dtype.
template <class Floats, class Integers>
HWY_INLINE void combine_any(void* values, const void* others, Dtype dtype, std::size_t count,
                            Floats floats, Integers integers) {
  const DefaultFloatMode mode;
  switch (dtype) {
    case Dtype::kF32:
      return combine<float>(values, others, count, floats);
    case Dtype::kBf16:
      return combine<Bf16>(values, others, count, floats);
    case Dtype::kF16:
      return combine<F16>(values, others, count, floats);
    case Dtype::kI8:
      return combine_integers<std::int8_t>(values, others, count, integers);
    case Dtype::kI32:
      return combine_integers<std::int32_t>(values, others, count, integers);
    case Dtype::kU32:
      return combine_integers<std::uint32_t>(values, others, count, integers);
  }
}

void scale_values_on(void* values, Dtype dtype, std::size_t count, float factor) {
  const DefaultFloatMode mode;
  visit_gradient_dtype(dtype, [&](auto value) { scale<decltype(value)>(values, count, factor); });
}

// Integer sums wrap around.
void add_values_on(void* sums, const void* values, Dtype dtype, std::size_t count) {
  combine_any(
      sums, values, dtype, count, [](VF32 a, VF32 b) HWY_ATTR { return hn::Add(a, b); },
      []<typename T>(T a, T b) HWY_ATTR {
        using Bits = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<Bits>(a) + static_cast<Bits>(b));
      });
}

void maximum_values_on(void* maxima, const void* values, Dtype dtype, std::size_t count) {
  combine_any(
      maxima, values, dtype, count, [](VF32 a, VF32 b) HWY_ATTR { return larger(a, b); },
      [](auto a, auto b) HWY_ATTR { return std::max(a, b); });
}

double sum_of_squares_on(const void* values, Dtype dtype, std::size_t count) {
  const DefaultFloatMode mode;
  return visit_gradient_dtype(dtype,
                              [&](auto value) { return squares<decltype(value)>(values, count); });
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

TERSOR_DISPATCHED(void, scale_values, (void* values, Dtype dtype, std::size_t count, float factor),
                  (values, dtype, count, factor))
TERSOR_DISPATCHED(void, add_values,
                  (void* sums, const void* values, Dtype dtype, std::size_t count),
                  (sums, values, dtype, count))
TERSOR_DISPATCHED(void, maximum_values,
                  (void* maxima, const void* values, Dtype dtype, std::size_t count),
                  (maxima, values, dtype, count))
TERSOR_DISPATCHED(double, sum_of_squares, (const void* values, Dtype dtype, std::size_t count),
                  (values, dtype, count))

}  // namespace tersor::kernels
#endif
