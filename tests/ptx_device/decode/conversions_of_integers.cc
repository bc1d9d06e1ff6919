// cvt from integers.
#include "tests/ptx_device/decode/conversions.h"
#include "tests/ptx_device/decode/lanes.h"
#include "tests/ptx_device/machine/numbers.h"

namespace ptx {
namespace {

/// Clamps to the range of D.
template <class D, class S>
D cut(S value) {
  const auto wide = static_cast<__int128>(value);
  const auto low = static_cast<__int128>(std::numeric_limits<D>::min());
  const auto high = static_cast<__int128>(std::numeric_limits<D>::max());
  return static_cast<D>(wide < low ? low : wide > high ? high : wide);
}

template <class D>
constexpr auto kConvert = [](auto value) { return static_cast<D>(value); };
/// If rounded down, a compiler's sum of two halves of 0 would be -0.
template <class D>
constexpr auto kConvertDirected =
    [](auto value) { return value == 0 ? D{0} : static_cast<D>(value); };
template <class D>
constexpr auto kConvertSaturated = [](auto value) { return cut<D>(value); };
/// F16 and Bf16 are converted through f32. f32 represents integers of up to 24 bits exactly.
template <class H>
constexpr auto kConvertToHalf = [](auto value) { return narrow<H>(static_cast<float>(value)); };

/// R: the result's register type; S: the value's type in the register.
template <class R, class S, auto F>
constexpr auto kInRegisters = [](auto value) { return static_cast<R>(F(static_cast<S>(value))); };

template <class D, class R>
WarpFunction to_integer(const Conversion& conversion) {
  const bool sat = (conversion.how & kSat) != 0;
  return by_integer_in_register(
      conversion.from, conversion.from_bytes, [&]<class S, class RS>() -> WarpFunction {
        if (sat) return each_lane<kInRegisters<R, S, kConvertSaturated<D>>, R, RS>;
        return each_lane<kInRegisters<R, S, kConvert<D>>, R, RS>;
      });
}

template <class D, auto F>
WarpFunction to_float(const Conversion& conversion) {
  return by_integer_in_register(
      conversion.from, conversion.from_bytes,
      []<class S, class RS>() -> WarpFunction { return each_lane<kInRegisters<D, S, F>, D, RS>; });
}

}  // namespace

WarpFunction integer_to_integer(const Conversion& conversion) {
  return by_integer_in_register(
      conversion.to, conversion.to_bytes,
      [&]<class D, class R>() -> WarpFunction { return to_integer<D, R>(conversion); });
}

WarpFunction integer_to_float(const Conversion& conversion) {
  if (conversion.to == "f32") return to_float<float, kConvertDirected<float>>(conversion);
  if (conversion.to == "f64") return to_float<double, kConvertDirected<double>>(conversion);
  if (conversion.round() > kRn) return nullptr;
  if (conversion.to == "f16") return to_float<F16, kConvertToHalf<F16>>(conversion);
  if (conversion.to == "bf16") return to_float<Bf16, kConvertToHalf<Bf16>>(conversion);
  return nullptr;
}

}  // namespace ptx
