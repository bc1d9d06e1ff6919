// Integer arithmetic.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

namespace ptx {
namespace {

template <class F>
struct OfOne {
  template <class T>
  static WarpFunction get() {
    return of_one<T, F>;
  }
};
template <class F>
struct OfTwo {
  template <class T>
  static WarpFunction get() {
    return of_two<T, F>;
  }
};
template <class F>
struct OfThree {
  template <class T>
  static WarpFunction get() {
    return of_three<T, F>;
  }
};
struct WideProduct {
  template <class T>
  static WarpFunction get() {
    if constexpr (sizeof(T) < 8) return binary<Wide<T>, T, T, MulWide>;
    return nullptr;
  }
};
struct WideProductSum {
  template <class T>
  static WarpFunction get() {
    if constexpr (sizeof(T) < 8) return ternary<Wide<T>, T, T, Wide<T>, MadWide>;
    return nullptr;
  }
};

template <class F>
void decode_one_integer(Decoder& decoder, Instruction& ins) {
  decoder.same_bytes(ins, by_integer<OfOne<F>>(decoder.type()), 1);
}

template <class F>
void decode_two_integer(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"cc", "sat", "relu"});
  decoder.same_bytes(ins, by_integer<OfTwo<F>>(decoder.type()), 2);
}

template <class F>
void decode_three(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"cc", "sat"});
  decoder.same_bytes(ins, by_integer<OfThree<F>>(decoder.type()), 3);
}

void decode_wide(Decoder& decoder, Instruction& ins, WarpFunction function) {
  const unsigned bytes = decoder.bytes();
  ins.run = decoder.known(function);
  ins.d = decoder.out(0, 2 * bytes);
  ins.a = decoder.in(1, bytes);
  ins.b = decoder.in(2, bytes);
}

void decode_mul(Decoder& decoder, Instruction& ins) {
  if (decoder.has("wide"))
    return decode_wide(decoder, ins, by_integer<WideProduct>(decoder.type()));
  if (decoder.has("hi")) return decode_two_integer<MulHigh>(decoder, ins);
  decode_two_integer<Mul>(decoder, ins);
}

void decode_mad(Decoder& decoder, Instruction& ins) {
  if (decoder.has("wide")) {
    decode_wide(decoder, ins, by_integer<WideProductSum>(decoder.type()));
    ins.c = decoder.in(3, 2 * decoder.bytes());
    return;
  }
  if (decoder.has("hi")) return decode_three<MadHigh>(decoder, ins);
  decode_three<Mad>(decoder, ins);
}

}  // namespace

void add_integers(Handlers& handlers) {
  handlers["add.integer"] = decode_two_integer<Add>;
  handlers["sub.integer"] = decode_two_integer<Sub>;
  handlers["mul.integer"] = decode_mul;
  handlers["mad.integer"] = decode_mad;
  handlers["div.integer"] = decode_two_integer<Div>;
  handlers["rem.integer"] = decode_two_integer<Rem>;
  handlers["min.integer"] = decode_two_integer<Min>;
  handlers["max.integer"] = decode_two_integer<Max>;
  handlers["sad.integer"] = decode_three<Sad>;
  handlers["neg.integer"] = decode_one_integer<Neg>;
  handlers["abs.integer"] = decode_one_integer<Abs>;
  handlers["and.integer"] = decode_two_integer<And>;
  handlers["or.integer"] = decode_two_integer<Or>;
  handlers["xor.integer"] = decode_two_integer<Xor>;
  handlers["not.integer"] = decode_one_integer<Not>;
}

}  // namespace ptx
