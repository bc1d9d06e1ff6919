// The cast formats: values are sent as values, in the gradient's own type or in a narrower type. A
// format selects the type, and kernels/scalar/convert.h defines the conversions.
// TERSOR_CAST_FORMATS lists the formats in the order used by codecs().
#pragma once

#include "kernels/scalar/convert.h"

#include <tersor/codecs/bf16.h>
#include <tersor/codecs/f16.h>
#include <tersor/codecs/none.h>
#include <tersor/dtype.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

#define TERSOR_CAST_FORMATS(X) X(NoneFormat) X(Bf16Format) X(F16Format)

namespace tersor::kernels {

/// kHasRounding is true if a spec may contain "rounding=stochastic".
struct NoneFormat {
  static constexpr std::string_view kName = "none";
  static constexpr std::string_view kSummary = "unchanged values; the baseline";
  static constexpr std::uint16_t kId = kNoneCodecId;
  static constexpr bool kLossless = true;  // True if bits are copied when nothing is computed
  static constexpr bool kHasRounding = false;
  template <typename Gradient>
  using Wire = Gradient;
};

struct Bf16Format {
  static constexpr std::string_view kName = "bf16";
  static constexpr std::string_view kSummary = "bfloat16, two bytes per value";
  static constexpr std::uint16_t kId = kBf16CodecId;
  static constexpr bool kLossless = false;
  static constexpr bool kHasRounding = true;
  template <typename>
  using Wire = Bf16;
};

struct F16Format {
  static constexpr std::string_view kName = "f16";
  static constexpr std::string_view kSummary =
      "IEEE binary16, two bytes per value; counts overflows";
  static constexpr std::uint16_t kId = kF16CodecId;
  static constexpr bool kLossless = false;
  static constexpr bool kHasRounding = false;
  template <typename>
  using Wire = F16;
};

/// The type of a format's raw values, which a transport adds. Raw values of f16 are sent as f32,
/// because sums overflow f16 and the parts of a mean underflow f16.
template <class Format, typename Gradient>
using Raw = std::conditional_t<std::is_same_v<typename Format::template Wire<Gradient>, F16>, float,
                               typename Format::template Wire<Gradient>>;

/// The type in which a cast stores values of type T. Sums of f16 payloads overflow to infinities,
/// like uncompressed f16 sums. An owner's frame contains the infinity of an overflowed sum. Decoded
/// bf16 saturates.
template <typename Wire, typename T>
using CastStored =
    std::conditional_t<std::is_same_v<T, F16> && !std::is_same_v<Wire, Bf16>, IeeeF16, T>;

/// True if a format's rounding can change p of a gradient. If p is the gradient and has the wire's
/// own type, rounding changes nothing.
template <class Format, typename Gradient, bool kFeedback>
constexpr bool kCanRound = Format::kHasRounding &&
                           (kFeedback ||
                            !std::is_same_v<typename Format::template Wire<Gradient>, Gradient>);

}  // namespace tersor::kernels
