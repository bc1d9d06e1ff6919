// Arithmetic of f16 and bf16, with up to two values per register. f32 arithmetic followed by
// rounding gives the same results as a single rounding.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/functions.h"
#include "tests/ptx_device/decode/lanes.h"

namespace ptx {
namespace {

template <class H, auto F>
constexpr auto kOfHalves = [](H a, H b) { return narrow<H>(F(widen(a), widen(b))); };

template <class H, auto F>
constexpr auto kOfPairs = [](std::uint32_t a, std::uint32_t b) {
  const auto half = [](std::uint32_t pair) { return H{static_cast<std::uint16_t>(pair)}; };
  const H upper = kOfHalves<H, F>(half(a >> 16), half(b >> 16));
  const H lower = kOfHalves<H, F>(half(a), half(b));
  return (std::uint32_t{upper.bits} << 16) | lower.bits;
};

template <auto F>
WarpFunction half_function_of(const std::string& type) {
  if (type == "f16") return same_type<kOfHalves<F16, F>, F16, 2>();
  if (type == "bf16") return same_type<kOfHalves<Bf16, F>, Bf16, 2>();
  if (type == "f16x2") return same_type<kOfPairs<F16, F>, std::uint32_t, 2>();
  return same_type<kOfPairs<Bf16, F>, std::uint32_t, 2>();
}

template <auto F>
void decode_half(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"NaN", "xorsign"});
  decoder.same_bytes(ins, half_function_of<F>(decoder.type()), 2);
}

template <auto F>
void decode_extreme_of_halves(Decoder& decoder, Instruction& ins) {
  if (!decoder.has("NaN")) return decode_half<F>(decoder, ins);
  decoder.refuse_parts({"xorsign"});
  decoder.same_bytes(ins, half_function_of<kOrNan<F>>(decoder.type()), 2);
}

}  // namespace

void add_halves(Handlers& handlers) {
  handlers["add.half"] = decode_half<kAdd>;
  handlers["sub.half"] = decode_half<kSub>;
  handlers["mul.half"] = decode_half<kMul>;
  handlers["min.half"] = decode_extreme_of_halves<kMin>;
  handlers["max.half"] = decode_extreme_of_halves<kMax>;
}

}  // namespace ptx
