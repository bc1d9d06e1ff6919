// The cast formats: values travel as values, of the gradient's own type or of a narrower one. A
// format says which (the types themselves are made by kernels/scalar/convert.h), and
// TERSOR_CAST_FORMATS lists it, in the order in which codecs() names them.
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

/// kHasRounding: whether a spec may say "rounding=stochastic".
struct NoneFormat {
  static constexpr std::string_view kName = "none";
  static constexpr std::string_view kSummary = "the gradient's values as they are; the baseline";
  static constexpr std::uint16_t kId = kNoneCodecId;
  static constexpr bool kLossless = true;  // bits travel as they are where nothing is computed
  static constexpr bool kHasRounding = false;
  template <typename Gradient>
  using Wire = Gradient;
};

struct Bf16Format {
  static constexpr std::string_view kName = "bf16";
  static constexpr std::string_view kSummary = "bfloat16, two bytes a value; the honest baseline";
  static constexpr std::uint16_t kId = kBf16CodecId;
  static constexpr bool kLossless = false;
  static constexpr bool kHasRounding = true;
  template <typename>
  using Wire = Bf16;
};

struct F16Format {
  static constexpr std::string_view kName = "f16";
  static constexpr std::string_view kSummary =
      "IEEE binary16, two bytes a value; overflows are counted";
  static constexpr std::uint16_t kId = kF16CodecId;
  static constexpr bool kLossless = false;
  static constexpr bool kHasRounding = false;
  template <typename>
  using Wire = F16;
};

/// What bare values of a format are, which a transport adds. Sums of f16 leave its range, and a
/// mean's parts vanish below it: they are f32.
template <class Format, typename Gradient>
using Bare = std::conditional_t<std::is_same_v<typename Format::template Wire<Gradient>, F16>,
                                float, typename Format::template Wire<Gradient>>;

/// The type that a cast stores values of type T as. Sums of f16 payloads overflow to infinities, as
/// uncompressed f16 sums do; an owner's sum has the infinity in its frame. Decoded bf16 saturates.
template <typename Wire, typename T>
using CastStored =
    std::conditional_t<std::is_same_v<T, F16> && !std::is_same_v<Wire, Bf16>, IeeeF16, T>;

/// Whether a format's rounding shows in p of a gradient: not where p is the gradient, of the wire's
/// own type.
template <class Format, typename Gradient, bool kFeedback>
constexpr bool kMayRound = Format::kHasRounding &&
                           (kFeedback ||
                            !std::is_same_v<typename Format::template Wire<Gradient>, Gradient>);

}  // namespace tersor::kernels
