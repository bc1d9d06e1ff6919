// Predicates: logic, selection between two values, and classes of numbers.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

#include <cmath>

namespace ptx {
namespace {

template <auto F>
void of_predicate(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  put_predicate(warp, ins.d, F(predicate_at(warp, ins.a)), lanes);
}

template <auto F>
void of_predicates(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  put_predicate(warp, ins.d, F(predicate_at(warp, ins.a), predicate_at(warp, ins.b)), lanes);
}

/// how: 1, the predicate is negated.
template <class T>
void selp(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const T *a = at<T>(warp, ins.a), *b = at<T>(warp, ins.b);
  const std::uint32_t c = predicate_at(warp, ins.c) ^ (ins.how != 0 ? kAll : 0);
  T values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = contains(c, i) ? a[i] : b[i];
  put(at<T>(warp, ins.d), values, lanes);
}

/// how: finite 0, infinite 1, number 2, notanumber 3, normal 4, subnormal 5.
bool is_of_class(int kind, unsigned how) {
  if (how == 0) return kind != FP_NAN && kind != FP_INFINITE;
  if (how == 2) return kind != FP_NAN;
  const int wanted[] = {0, FP_INFINITE, 0, FP_NAN, FP_NORMAL, FP_SUBNORMAL};
  return kind == wanted[how];
}

template <class T>
void testp(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const T* a = at<T>(warp, ins.a);
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < kLanes; ++i)
    bits |= std::uint32_t{is_of_class(std::fpclassify(a[i]), ins.how)} << i;
  put_predicate(warp, ins.d, bits, lanes);
}

template <WarpFunction kFunction, std::size_t kInputs>
void decode_predicate(Decoder& decoder, Instruction& ins) {
  decoder.same_bytes(ins, kFunction, kInputs);
}

void decode_selp(Decoder& decoder, Instruction& ins) {
  const unsigned bytes = decoder.bytes();
  decoder.same_bytes(ins,
                     bytes == 2   ? selp<std::uint16_t>
                     : bytes == 4 ? selp<std::uint32_t>
                                  : selp<std::uint64_t>,
                     2);
  ins.c = decoder.in(3, 0);
  ins.how = decoder.operand(3).negated;
}

void decode_testp(Decoder& decoder, Instruction& ins) {
  ins.how = decoder.which({"finite", "infinite", "number", "notanumber", "normal"});
  ins.run = decoder.type() == "f32" ? testp<float> : testp<double>;
  ins.d = decoder.out(0, 0);
  ins.a = decoder.in(1, decoder.bytes());
}

}  // namespace

void add_predicates(Handlers& handlers) {
  handlers["and.predicate"] = decode_predicate<of_predicates<kAnd>, 2>;
  handlers["or.predicate"] = decode_predicate<of_predicates<kOr>, 2>;
  handlers["xor.predicate"] = decode_predicate<of_predicates<kXor>, 2>;
  handlers["not.predicate"] = decode_predicate<of_predicate<kNot>, 1>;
  handlers["mov.predicate"] = decode_predicate<of_predicate<kSame>, 1>;
  handlers["selp"] = decode_selp;
  handlers["testp"] = decode_testp;
}

}  // namespace ptx
