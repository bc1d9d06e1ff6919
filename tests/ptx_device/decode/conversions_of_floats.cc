// cvt from floating-point numbers.
#include "tests/ptx_device/decode/conversions.h"
#include "tests/ptx_device/decode/functions.h"
#include "tests/ptx_device/decode/lanes.h"

namespace ptx {
namespace {

template <class S>
constexpr bool kIsHalf = std::is_same_v<S, F16> || std::is_same_v<S, Bf16>;

template <class S>
inline auto widest(S value) {
  if constexpr (kIsHalf<S>)
    return widen(value);
  else
    return value;
}

template <class S>
inline auto flushed_if(S value, bool ftz) {
  if constexpr (std::is_same_v<S, float>)
    return ftz ? flushed(value) : value;
  else
    return value;
}

template <class R, class D, class S>
void to_integer(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const S* a = at<S>(warp, ins.a);
  const bool ftz = (ins.how & kFtz) != 0;
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    const double value = flushed_if(widest(a[i]), ftz);
    values[i] = static_cast<R>(integer_of<D>(rounded(value, ins.how)));
  }
  put(at<R>(warp, ins.d), values, lanes);
}

/// Converts between numbers of at most 32 bits.
template <class D, class S>
void to_float(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const S* a = at<S>(warp, ins.a);
  const bool sat = (ins.how & kSat) != 0, ftz = (ins.how & kFtz) != 0;
  const bool to_integers = (ins.how & kRoundMask) >= kRni;
  D values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    float value = flushed_if(widest(a[i]), ftz);
    if (to_integers) value = static_cast<float>(rounded(value, ins.how));
    if (sat) value = saturated(value);
    if constexpr (kIsHalf<D>)
      values[i] = narrow<D>(value);
    else
      values[i] = canonical(value);
  }
  put(at<D>(warp, ins.d), values, lanes);
}

/// Converts from or to f64.
template <class D, class S>
void by_double(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const S* a = at<S>(warp, ins.a);
  D values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i)
    values[i] = canonical(static_cast<D>(rounded(widest(a[i]), ins.how)));
  put(at<D>(warp, ins.d), values, lanes);
}

/// Converts to f16 or bf16 with directed rounding.
template <class D, Round kRound>
D narrow_toward(float a) {
  D near = narrow<D>(a);
  const float found = widen(near);
  if (a != a || found == a) return near;
  const bool is_negative = std::signbit(a), above = found > a;
  const bool too_large = is_negative ? !above : above;  // away from 0
  const bool to_zero = kRound == kRz || (kRound == kRm) == !is_negative;
  if (to_zero && too_large) --near.bits;
  if (!to_zero && !too_large) ++near.bits;
  return near;
}

/// a becomes the upper half.
template <class D, D (*kNarrow)(float)>
constexpr auto kPair =
    [](float a, float b) { return (std::uint32_t{kNarrow(a).bits} << 16) | kNarrow(b).bits; };

template <class S>
WarpFunction to_integer_from(const Conversion& conversion) {
  return by_integer_in_register(
      conversion.to, conversion.to_bytes,
      []<class D, class R>() -> WarpFunction { return to_integer<R, D, S>; });
}

template <class S>
WarpFunction to_float_from(const std::string& to) {
  if (to == "f64") return by_double<double, S>;
  if constexpr (std::is_same_v<S, double>) {
    if (to == "f32") return by_double<float, S>;
  } else {
    if (to == "f32") return to_float<float, S>;
    if (to == "f16") return to_float<F16, S>;
    if (to == "bf16") return to_float<Bf16, S>;
  }
  return nullptr;
}

template <class D>
WarpFunction toward(Round round) {
  if (round == kRz) return each_lane<narrow_toward<D, kRz>, D, float>;
  if (round == kRm) return each_lane<narrow_toward<D, kRm>, D, float>;
  if (round == kRp) return each_lane<narrow_toward<D, kRp>, D, float>;
  return nullptr;
}

template <class D>
WarpFunction to_pair(std::uint8_t how) {
  if (how == kRn) return each_lane<kPair<D, narrow<D>>, std::uint32_t, float, float>;
  if (how == kRz) return each_lane<kPair<D, narrow_toward<D, kRz>>, std::uint32_t, float, float>;
  return nullptr;
}

WarpFunction directed(const Conversion& conversion) {
  if (conversion.to == "f32" && conversion.from == "f64") return by_double<float, double>;
  if (conversion.from != "f32" || conversion.how != conversion.round()) return nullptr;
  if (conversion.to == "f16") return toward<F16>(conversion.round());
  if (conversion.to == "bf16") return toward<Bf16>(conversion.round());
  return nullptr;
}

}  // namespace

WarpFunction float_to_integer(const Conversion& conversion) {
  if (conversion.round() < kRni) return nullptr;
  if (conversion.from == "f32") return to_integer_from<float>(conversion);
  if (conversion.from == "f64") return to_integer_from<double>(conversion);
  if (conversion.from == "f16") return to_integer_from<F16>(conversion);
  if (conversion.from == "bf16") return to_integer_from<Bf16>(conversion);
  return nullptr;
}

WarpFunction float_to_float(const Conversion& conversion) {
  const bool narrows = bytes_of_type(conversion.to) <= bytes_of_type(conversion.from);
  const bool rounds = conversion.to != conversion.from && narrows;
  if (rounds && conversion.round() > kRn && conversion.round() < kRni) return directed(conversion);
  if (conversion.from == "f32") return to_float_from<float>(conversion.to);
  if (conversion.from == "f64") return to_float_from<double>(conversion.to);
  if (conversion.from == "f16") return to_float_from<F16>(conversion.to);
  if (conversion.from == "bf16") return to_float_from<Bf16>(conversion.to);
  return nullptr;
}

WarpFunction floats_to_pair(const Conversion& conversion) {
  if (conversion.from != "f32") return nullptr;
  return conversion.to == "f16x2" ? to_pair<F16>(conversion.how) : to_pair<Bf16>(conversion.how);
}

}  // namespace ptx
