// Arithmetic of f32 and f64.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/functions.h"
#include "tests/ptx_device/decode/lanes.h"
#include "tests/ptx_device/decode/rounding.h"

#include <concepts>

namespace ptx {
namespace {

/// Whether F has a form for f64.
template <class F, class... T>
concept OfDoubles = requires(T... values) {
  { F::f(values...) } -> std::same_as<double>;
};

template <class F>
WarpFunction of_doubles_one() {
  if constexpr (OfDoubles<F, double>) return of_one<double, F>;
  return nullptr;
}

template <class F>
void decode_one_float(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"sat"});
  WarpFunction function = of_one<float, F>;
  if (decoder.type() == "f64")
    function = of_doubles_one<F>();
  else if (decoder.has("ftz"))
    function = of_one<float, Flushed<F>>;
  decoder.same_bytes(ins, function, 1);
  direct_rounding(decoder, ins);
}

template <class F>
void decode_two_float(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"NaN", "xorsign"});
  if (decoder.operands() != 3) decoder.refuse();
  const bool sat = decoder.has("sat"), ftz = decoder.has("ftz");
  WarpFunction function = of_two<float, F>;
  if (decoder.type() == "f64")
    function = of_two<double, F>;
  else if (sat && ftz)
    function = of_two<float, Flushed<Saturated<F>>>;
  else if (sat)
    function = of_two<float, Saturated<F>>;
  else if (ftz)
    function = of_two<float, Flushed<F>>;
  decoder.same_bytes(ins, function, 2);
  direct_rounding(decoder, ins);
}

void decode_fma(Decoder& decoder, Instruction& ins) {
  const bool sat = decoder.has("sat"), ftz = decoder.has("ftz");
  WarpFunction function = of_three<float, Fma>;
  if (decoder.type() == "f64")
    function = of_three<double, Fma>;
  else if (sat && ftz)
    function = of_three<float, Flushed<Saturated<Fma>>>;
  else if (sat)
    function = of_three<float, Saturated<Fma>>;
  else if (ftz)
    function = of_three<float, Flushed<Fma>>;
  decoder.same_bytes(ins, function, 3);
  direct_rounding(decoder, ins);
}

}  // namespace

void add_floats(Handlers& handlers) {
  handlers["add.float"] = decode_two_float<Add>;
  handlers["sub.float"] = decode_two_float<Sub>;
  handlers["mul.float"] = decode_two_float<Mul>;
  handlers["div.float"] = decode_two_float<Div>;
  handlers["min.float"] = decode_two_float<Min>;
  handlers["max.float"] = decode_two_float<Max>;
  handlers["copysign.float"] = decode_two_float<CopySign>;
  handlers["fma.float"] = decode_fma;
  handlers["mad.float"] = decode_fma;
  handlers["neg.float"] = decode_one_float<Neg>;
  handlers["abs.float"] = decode_one_float<Abs>;
  handlers["sqrt.float"] = decode_one_float<Sqrt>;
  handlers["rcp.float"] = decode_one_float<Rcp>;
  handlers["rsqrt.float"] = decode_one_float<Rsqrt>;
  handlers["ex2.float"] = decode_one_float<Exp2>;
  handlers["lg2.float"] = decode_one_float<Log2>;
  handlers["sin.float"] = decode_one_float<Sin>;
  handlers["cos.float"] = decode_one_float<Cos>;
  handlers["tanh.float"] = decode_one_float<Tanh>;
}

}  // namespace ptx
