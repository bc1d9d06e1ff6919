// Comparisons: setp, whose result is a predicate or two, and set, whose result is a number.
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

#include <type_traits>

namespace ptx {
namespace {

enum class Compare : std::uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan
};

/// The unordered ones are true where a number is a NaN.
template <class T, Compare kCompare>
inline bool compare(T a, T b) {
  if constexpr (kCompare == Compare::kEq) return a == b;
  if constexpr (kCompare == Compare::kNe)
    return std::is_floating_point_v<T> ? a < b || a > b : a != b;
  if constexpr (kCompare == Compare::kLt) return a < b;
  if constexpr (kCompare == Compare::kLe) return a <= b;
  if constexpr (kCompare == Compare::kGt) return a > b;
  if constexpr (kCompare == Compare::kGe) return a >= b;
  if constexpr (kCompare == Compare::kEqu) return !(a < b || a > b);
  if constexpr (kCompare == Compare::kNeu) return !(a == b);
  if constexpr (kCompare == Compare::kLtu) return !(a >= b);
  if constexpr (kCompare == Compare::kLeu) return !(a > b);
  if constexpr (kCompare == Compare::kGtu) return !(a <= b);
  if constexpr (kCompare == Compare::kGeu) return !(a < b);
  if constexpr (kCompare == Compare::kNum) return a == a && b == b;
  if constexpr (kCompare == Compare::kNan) return a != a || b != b;
}

template <class T, Compare kCompare>
std::uint32_t compare_all(Warp& warp, const Instruction& ins) {
  const T *a = at<T>(warp, ins.a), *b = at<T>(warp, ins.b);
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < kLanes; ++i)
    bits |= static_cast<std::uint32_t>(compare<T, kCompare>(a[i], b[i])) << i;
  return bits;
}

/// how: 1 and, 2 or, 3 xor.
std::uint32_t combine(unsigned how, std::uint32_t a, std::uint32_t b) {
  return how == 1 ? a & b : how == 2 ? a | b : a ^ b;
}

/// how: 0 none, else as for combine, with the predicate c (+4: negated).
template <class T, Compare kCompare>
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
template <class T, Compare kCompare>
void set(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const std::uint32_t bits = compare_all<T, kCompare>(warp, ins);
  const std::uint32_t one = ins.how == 1 ? 0x3f800000u : kAll;
  std::uint32_t values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = contains(bits, i) ? one : 0;
  put(at<std::uint32_t>(warp, ins.d), values, lanes);
}

template <class T, Compare kCompare>
struct Setp {
  static constexpr WarpFunction function = setp<T, kCompare>;
};
template <class T, Compare kCompare>
struct SetBits {
  static constexpr WarpFunction function = set<T, kCompare>;
};

template <class T, template <class, Compare> class F>
WarpFunction compare_of_type(Compare compare) {
  switch (compare) {
    case Compare::kEq:
      return F<T, Compare::kEq>::function;
    case Compare::kNe:
      return F<T, Compare::kNe>::function;
    case Compare::kLt:
      return F<T, Compare::kLt>::function;
    case Compare::kLe:
      return F<T, Compare::kLe>::function;
    case Compare::kGt:
      return F<T, Compare::kGt>::function;
    case Compare::kGe:
      return F<T, Compare::kGe>::function;
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    switch (compare) {
      case Compare::kEqu:
        return F<T, Compare::kEqu>::function;
      case Compare::kNeu:
        return F<T, Compare::kNeu>::function;
      case Compare::kLtu:
        return F<T, Compare::kLtu>::function;
      case Compare::kLeu:
        return F<T, Compare::kLeu>::function;
      case Compare::kGtu:
        return F<T, Compare::kGtu>::function;
      case Compare::kGeu:
        return F<T, Compare::kGeu>::function;
      case Compare::kNum:
        return F<T, Compare::kNum>::function;
      case Compare::kNan:
        return F<T, Compare::kNan>::function;
      default:
        break;
    }
  }
  return nullptr;
}

template <template <class, Compare> class F>
WarpFunction function_of(const std::string& type, Compare compare) {
  if (type == "s16") return compare_of_type<std::int16_t, F>(compare);
  if (type == "u16" || type == "b16") return compare_of_type<std::uint16_t, F>(compare);
  if (type == "s32") return compare_of_type<std::int32_t, F>(compare);
  if (type == "u32" || type == "b32") return compare_of_type<std::uint32_t, F>(compare);
  if (type == "s64") return compare_of_type<std::int64_t, F>(compare);
  if (type == "u64" || type == "b64") return compare_of_type<std::uint64_t, F>(compare);
  if (type == "f32") return compare_of_type<float, F>(compare);
  if (type == "f64") return compare_of_type<double, F>(compare);
  return nullptr;
}

Compare compare_of(const Decoder& decoder) {
  static const std::unordered_map<std::string, Compare> known = {
      {"eq", Compare::kEq},   {"ne", Compare::kNe},   {"lt", Compare::kLt},
      {"le", Compare::kLe},   {"gt", Compare::kGt},   {"ge", Compare::kGe},
      {"equ", Compare::kEqu}, {"neu", Compare::kNeu}, {"ltu", Compare::kLtu},
      {"leu", Compare::kLeu}, {"gtu", Compare::kGtu}, {"geu", Compare::kGeu},
      {"num", Compare::kNum}, {"nan", Compare::kNan}, {"lo", Compare::kLt},
      {"ls", Compare::kLe},   {"hi", Compare::kGt},   {"hs", Compare::kGe}};
  const auto found = known.find(decoder.op()[1]);
  if (found == known.end()) decoder.refuse();
  return found->second;
}

void decode_inputs(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"ftz"});
  ins.a = decoder.in(1, bytes_of_type(decoder.op().back()));
  ins.b = decoder.in(2, bytes_of_type(decoder.op().back()));
}

/// setp.lt.and.f32 p|q, a, b, !c
void decode_setp(Decoder& decoder, Instruction& ins) {
  ins.run = decoder.known(function_of<Setp>(decoder.op().back(), compare_of(decoder)));
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
  ins.run = decoder.known(function_of<SetBits>(decoder.op().back(), compare_of(decoder)));
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
