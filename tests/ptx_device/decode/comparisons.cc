// Comparisons: setp gives one or two predicates, set gives a number.
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

#include <type_traits>

namespace ptx {
namespace {

constexpr auto kEqual = [](auto a, auto b) { return a == b; };
constexpr auto kNotEqual = [](auto a, auto b) { return a < b || a > b; };
constexpr auto kLess = [](auto a, auto b) { return a < b; };
constexpr auto kLessOrEqual = [](auto a, auto b) { return a <= b; };
constexpr auto kGreater = [](auto a, auto b) { return a > b; };
constexpr auto kGreaterOrEqual = [](auto a, auto b) { return a >= b; };
constexpr auto kNumbers = [](auto a, auto b) { return a == a && b == b; };
/// Floating-point numbers: also true if an operand is NaN.
template <auto kOpposite>
constexpr auto kUnordered = [](auto a, auto b) { return !kOpposite(a, b); };

template <class T, auto kCompare>
std::uint32_t compare_all(Warp& warp, const Instruction& ins) {
  const T *a = at<T>(warp, ins.a), *b = at<T>(warp, ins.b);
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < kLanes; ++i)
    bits |= static_cast<std::uint32_t>(kCompare(a[i], b[i])) << i;
  return bits;
}

/// how: 1 and, 2 or, 3 xor.
std::uint32_t combine(unsigned how, std::uint32_t a, std::uint32_t b) {
  return how == 1 ? a & b : how == 2 ? a | b : a ^ b;
}

/// how: 0 none, otherwise as for combine, with the predicate c (+4: negated).
template <class T, auto kCompare>
void setp(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  std::uint32_t first = compare_all<T, kCompare>(warp, ins), second = ~first;
  if (ins.how != 0) {
    const std::uint32_t c = predicate_at(warp, ins.c) ^ ((ins.how & 4) != 0 ? kAll : 0);
    first = combine(ins.how & 3, first, c);
    second = combine(ins.how & 3, second, c);
  }
  if (ins.d != kNoPlace) put_predicate(warp, ins.d, first, lanes);
  if (ins.has_d2) put_predicate(warp, ins.d2, second, lanes);
}

/// how: 1, the result is 1.0f.
template <class T, auto kCompare>
void set(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const std::uint32_t bits = compare_all<T, kCompare>(warp, ins);
  const std::uint32_t one = ins.how == 1 ? 0x3f800000u : kAll;
  std::uint32_t values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = contains(bits, i) ? one : 0;
  put(at<std::uint32_t>(warp, ins.d), values, lanes);
}

/// Calls choose.template operator()<kCompare>() for the name of a comparison. Returns null if T has
/// no such comparison.
template <class T, class F>
WarpFunction by_name(const std::string& name, F choose) {
  if (name == "eq") return choose.template operator()<kEqual>();
  if (name == "ne") return choose.template operator()<kNotEqual>();
  if (name == "lt" || name == "lo") return choose.template operator()<kLess>();
  if (name == "le" || name == "ls") return choose.template operator()<kLessOrEqual>();
  if (name == "gt" || name == "hi") return choose.template operator()<kGreater>();
  if (name == "ge" || name == "hs") return choose.template operator()<kGreaterOrEqual>();
  if constexpr (std::is_floating_point_v<T>) {
    if (name == "equ") return choose.template operator()<kUnordered<kNotEqual>>();
    if (name == "neu") return choose.template operator()<kUnordered<kEqual>>();
    if (name == "ltu") return choose.template operator()<kUnordered<kGreaterOrEqual>>();
    if (name == "leu") return choose.template operator()<kUnordered<kGreater>>();
    if (name == "gtu") return choose.template operator()<kUnordered<kLessOrEqual>>();
    if (name == "geu") return choose.template operator()<kUnordered<kLess>>();
    if (name == "num") return choose.template operator()<kNumbers>();
    if (name == "nan") return choose.template operator()<kUnordered<kNumbers>>();
  }
  return nullptr;
}

/// Calls choose.template operator()<T, kCompare>() for a statement's type and comparison.
template <class F>
WarpFunction comparison_of(const Decoder& decoder, F choose) {
  const std::string &name = decoder.op()[1], &type = decoder.op().back();
  const auto of_type = [&]<class T>() {
    return by_name<T>(
        name, [&]<auto kCompare>() { return choose.template operator()<T, kCompare>(); });
  };
  if (type == "f32") return decoder.known(of_type.template operator()<float>());
  if (type == "f64") return decoder.known(of_type.template operator()<double>());
  return decoder.known(by_integer(type, of_type));
}

void decode_inputs(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"ftz"});
  ins.a = decoder.in(1, bytes_of_type(decoder.op().back()));
  ins.b = decoder.in(2, bytes_of_type(decoder.op().back()));
}

/// setp.lt.and.f32 p|q, a, b, !c
void decode_setp(Decoder& decoder, Instruction& ins) {
  ins.run = comparison_of(
      decoder, []<class T, auto kCompare>()->WarpFunction { return setp<T, kCompare>; });
  decode_inputs(decoder, ins);
  ins.d = decoder.out(0, 0);
  decoder.second_out(ins);
  if (decoder.operands() <= 3) return;
  ins.how = static_cast<std::uint8_t>(decoder.which({"and", "or"}) + 1);
  if (decoder.operand(3).negated) ins.how |= 4;
  ins.c = decoder.in(3, 0);
}

void decode_set(Decoder& decoder, Instruction& ins) {
  const std::string& result = decoder.op()[decoder.op().size() - 2];
  if (decoder.operands() > 3 || bytes_of_type(result) != 4) decoder.refuse();
  ins.run = comparison_of(
      decoder, []<class T, auto kCompare>()->WarpFunction { return set<T, kCompare>; });
  decode_inputs(decoder, ins);
  ins.how = result == "f32";
  ins.d = decoder.out(0, 4);
}

}  // namespace

void add_comparisons(Handlers& handlers) {
  handlers["setp"] = decode_setp;
  handlers["set"] = decode_set;
}

}  // namespace ptx
