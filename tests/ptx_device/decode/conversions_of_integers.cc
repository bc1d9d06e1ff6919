// cvt from integers.
#include "tests/ptx_device/decode/conversions.h"
#include "tests/ptx_device/decode/lanes.h"
#include "tests/ptx_device/machine/numbers.h"

namespace ptx {
namespace {

/// Cut to what D holds.
template <class D, class S>
D cut(S value) {
  const auto wide = static_cast<__int128>(value);
  const auto low = static_cast<__int128>(std::numeric_limits<D>::min());
  const auto high = static_cast<__int128>(std::numeric_limits<D>::max());
  return static_cast<D>(wide < low ? low : wide > high ? high : wide);
}

template <class D, class S>
struct Convert {
  static D f(S value) { return static_cast<D>(value); }
};
/// Rounded down, a compiler's sum of two halves of 0 would be -0.
template <class D, class S>
struct ConvertDirected {
  static D f(S value) { return value == 0 ? D{0} : static_cast<D>(value); }
};
template <class D, class S>
struct ConvertSaturated {
  static D f(S value) { return cut<D>(value); }
};
/// F16 and Bf16 by f32, which holds integers of up to 24 bits.
template <class H, class S>
struct ConvertToHalf {
  static H f(S value) { return narrow<H>(static_cast<float>(value)); }
};

/// The registers are R and RS, the types in them D and S.
template <class R, class D, class RS, class S, class F>
struct InRegisters {
  static R f(RS value) { return static_cast<R>(F::f(static_cast<S>(value))); }
};

template <class D, class R>
WarpFunction to_integer(const Conversion& conversion) {
  const bool sat = (conversion.how & kSat) != 0;
  return by_integer_in_register(
      conversion.from, conversion.from_bytes, [&]<class S, class RS>() -> WarpFunction {
        if (sat) return unary<R, RS, InRegisters<R, D, RS, S, ConvertSaturated<D, S>>>;
        return unary<R, RS, InRegisters<R, D, RS, S, Convert<D, S>>>;
      });
}

template <class D, template <class, class> class F>
WarpFunction to_float(const Conversion& conversion) {
  return by_integer_in_register(conversion.from, conversion.from_bytes,
                                []<class S, class RS>() -> WarpFunction {
                                  return unary<D, RS, InRegisters<D, D, RS, S, F<D, S>>>;
                                });
}

}  // namespace

WarpFunction integer_to_integer(const Conversion& conversion) {
  return by_integer_in_register(
      conversion.to, conversion.to_bytes,
      [&]<class D, class R>() -> WarpFunction { return to_integer<D, R>(conversion); });
}

WarpFunction integer_to_float(const Conversion& conversion) {
  if (conversion.to == "f32") return to_float<float, ConvertDirected>(conversion);
  if (conversion.to == "f64") return to_float<double, ConvertDirected>(conversion);
  if (conversion.round() > kRn) return nullptr;
  if (conversion.to == "f16") return to_float<F16, ConvertToHalf>(conversion);
  if (conversion.to == "bf16") return to_float<Bf16, ConvertToHalf>(conversion);
  return nullptr;
}

}  // namespace ptx
