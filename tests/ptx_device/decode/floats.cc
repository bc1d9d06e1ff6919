// Arithmetic of f32 and f64.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/functions.h"
#include "tests/ptx_device/decode/lanes.h"
#include "tests/ptx_device/decode/rounding.h"

#include <concepts>

namespace ptx {
namespace {

template <auto F, std::size_t kInputs>
WarpFunction of_doubles() {
  constexpr bool kOnlyFloats = requires(double a) {
    { F(a) } -> std::same_as<float>;
  };
  if constexpr (kInputs == 1 && kOnlyFloats)
    return nullptr;
  else
    return same_type<F, double, kInputs>();
}

template <auto F, std::size_t kInputs>
WarpFunction of_floats(bool sat, bool ftz) {
  if (sat && ftz) return same_type<kFlushed<kSaturated<F>>, float, kInputs>();
  if (sat) return same_type<kSaturated<F>, float, kInputs>();
  if (ftz) return same_type<kFlushed<F>, float, kInputs>();
  return same_type<F, float, kInputs>();
}

template <auto F, std::size_t kInputs>
void decode_function(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"xorsign"});
  if (kInputs == 1) decoder.refuse_parts({"sat"});
  if (decoder.operands() != kInputs + 1) decoder.refuse();
  const bool is_double = decoder.type() == "f64";
  decoder.same_bytes(ins,
                     is_double ? of_doubles<F, kInputs>()
                               : of_floats<F, kInputs>(decoder.has("sat"), decoder.has("ftz")),
                     kInputs);
  direct_rounding(decoder, ins);
}

template <auto F, std::size_t kInputs>
void decode_float(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"NaN"});
  decode_function<F, kInputs>(decoder, ins);
}

template <auto F>
void decode_extreme(Decoder& decoder, Instruction& ins) {
  if (decoder.has("NaN"))
    decode_function<kOrNan<F>, 2>(decoder, ins);
  else
    decode_function<F, 2>(decoder, ins);
}

}  // namespace

void add_floats(Handlers& handlers) {
  handlers["add.float"] = decode_float<kAdd, 2>;
  handlers["sub.float"] = decode_float<kSub, 2>;
  handlers["mul.float"] = decode_float<kMul, 2>;
  handlers["div.float"] = decode_float<kDiv, 2>;
  handlers["min.float"] = decode_extreme<kMin>;
  handlers["max.float"] = decode_extreme<kMax>;
  handlers["copysign.float"] = decode_float<kCopySign, 2>;
  handlers["fma.float"] = handlers["mad.float"] = decode_float<kFma, 3>;
  handlers["neg.float"] = decode_float<kNeg, 1>;
  handlers["abs.float"] = decode_float<kAbs, 1>;
  handlers["sqrt.float"] = decode_float<kSqrt, 1>;
  handlers["rcp.float"] = decode_float<kRcp, 1>;
  handlers["rsqrt.float"] = decode_float<kRsqrt, 1>;
  handlers["ex2.float"] = decode_float<kApproximate<std::exp2>, 1>;
  handlers["lg2.float"] = decode_float<kApproximate<std::log2>, 1>;
  handlers["sin.float"] = decode_float<kApproximate<std::sin>, 1>;
  handlers["cos.float"] = decode_float<kApproximate<std::cos>, 1>;
  handlers["tanh.float"] = decode_float<kApproximate<std::tanh>, 1>;
}

}  // namespace ptx
