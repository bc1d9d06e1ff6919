// Integer arithmetic.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

namespace ptx {
namespace {

template <auto F, std::size_t kInputs>
void decode_integer(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"cc", "sat", "relu"});
  const auto choose = []<class T>() { return same_type<F, T, kInputs>(); };
  decoder.same_bytes(ins, by_integer(decoder.type(), choose), kInputs);
}

/// Decodes a wide product of two integers, with twice the size.
template <auto F, template <class> class... Sum>
void decode_wide(Decoder& decoder, Instruction& ins) {
  const unsigned bytes = decoder.bytes();
  ins.run = decoder.known(by_integer(decoder.type(), []<class T>() -> WarpFunction {
    if constexpr (sizeof(T) < 8) return each_lane<F, Wide<T>, T, T, Sum<T>...>;
    return nullptr;
  }));
  ins.d = decoder.out(0, 2 * bytes);
  ins.a = decoder.in(1, bytes);
  ins.b = decoder.in(2, bytes);
}

void decode_mul(Decoder& decoder, Instruction& ins) {
  if (decoder.has("wide")) return decode_wide<kMulWide>(decoder, ins);
  if (decoder.has("hi")) return decode_integer<kMulHigh, 2>(decoder, ins);
  decode_integer<kMul, 2>(decoder, ins);
}

void decode_mad(Decoder& decoder, Instruction& ins) {
  if (decoder.has("wide")) {
    decode_wide<kMadWide, Wide>(decoder, ins);
    ins.c = decoder.in(3, 2 * decoder.bytes());
    return;
  }
  if (decoder.has("hi")) return decode_integer<kMadHigh, 3>(decoder, ins);
  decode_integer<kMad, 3>(decoder, ins);
}

}  // namespace

void add_integers(Handlers& handlers) {
  handlers["add.integer"] = decode_integer<kAdd, 2>;
  handlers["sub.integer"] = decode_integer<kSub, 2>;
  handlers["mul.integer"] = decode_mul;
  handlers["mad.integer"] = decode_mad;
  handlers["div.integer"] = decode_integer<kDiv, 2>;
  handlers["rem.integer"] = decode_integer<kRem, 2>;
  handlers["min.integer"] = decode_integer<kMin, 2>;
  handlers["max.integer"] = decode_integer<kMax, 2>;
  handlers["sad.integer"] = decode_integer<kSad, 3>;
  handlers["neg.integer"] = decode_integer<kNeg, 1>;
  handlers["abs.integer"] = decode_integer<kAbs, 1>;
  handlers["and.integer"] = decode_integer<kAnd, 2>;
  handlers["or.integer"] = decode_integer<kOr, 2>;
  handlers["xor.integer"] = decode_integer<kXor, 2>;
  handlers["not.integer"] = decode_integer<kNot, 1>;
}

}  // namespace ptx
