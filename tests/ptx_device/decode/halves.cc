// Arithmetic of f16 and bf16, one or two a register: by f32, which rounds as if at once.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

namespace ptx {
namespace {

template <class H, class F>
struct OfHalves {
  static H f(H a, H b) { return narrow<H>(F::f(widen(a), widen(b))); }
};

template <class H, class F>
struct OfPairs {
  static H half(std::uint32_t pair, unsigned shift) {
    return {static_cast<std::uint16_t>(pair >> shift)};
  }
  static std::uint32_t f(std::uint32_t a, std::uint32_t b) {
    const H upper = OfHalves<H, F>::f(half(a, 16), half(b, 16));
    const H lower = OfHalves<H, F>::f(half(a, 0), half(b, 0));
    return (std::uint32_t{upper.bits} << 16) | lower.bits;
  }
};

template <class F>
WarpFunction function_of(const std::string& type) {
  if (type == "f16") return of_two<F16, OfHalves<F16, F>>;
  if (type == "bf16") return of_two<Bf16, OfHalves<Bf16, F>>;
  if (type == "f16x2") return of_two<std::uint32_t, OfPairs<F16, F>>;
  return of_two<std::uint32_t, OfPairs<Bf16, F>>;
}

template <class F>
void decode_two_halve(Decoder& decoder, Instruction& ins) {
  decoder.same_bytes(ins, function_of<F>(decoder.type()), 2);
}

}  // namespace

void add_halves(Handlers& handlers) {
  handlers["add.half"] = decode_two_halve<Add>;
  handlers["sub.half"] = decode_two_halve<Sub>;
  handlers["mul.half"] = decode_two_halve<Mul>;
  handlers["min.half"] = decode_two_halve<Min>;
  handlers["max.half"] = decode_two_halve<Max>;
}

}  // namespace ptx
