// What each statement does: a function for a warp, chosen by opcode and types, and where its operands
// lie. What is not known here is refused, with the statement.
#include "tests/ptx_device/machine/machine.h"
#include "tests/ptx_device/machine/memory_ops.h"
#include "tests/ptx_device/machine/numbers.h"

#include <cxxabi.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <mutex>

namespace ptx {

std::vector<std::uint32_t> place_registers(const Function& function,
                                           const std::vector<std::vector<int>>& reads,
                                           const std::vector<std::vector<int>>& writes,
                                           std::size_t& bytes);

namespace {

using Op = std::vector<std::string>;

// ---- Functions for warps -------------------------------------------------------------------------

template <class R>
inline void put(R* to, const R* values, std::uint32_t lanes) {
  if (lanes == kAll) {
    for (unsigned i = 0; i < kLanes; ++i) to[i] = values[i];
  } else {
    for (unsigned i = 0; i < kLanes; ++i) to[i] = ((lanes >> i) & 1) != 0 ? values[i] : to[i];
  }
}
inline void put_predicate(Warp& w, std::uint32_t offset, std::uint32_t bits, std::uint32_t lanes) {
  auto* to = at<std::uint32_t>(w, offset);
  *to = (*to & ~lanes) | (bits & lanes);
}

template <class R, class A, class F>
void unary(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const A* a = at<A>(w, ins.a);
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = F::f(a[i]);
  put(at<R>(w, ins.d), values, lanes);
}
template <class R, class A, class B, class F>
void binary(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const A* a = at<A>(w, ins.a);
  const B* b = at<B>(w, ins.b);
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = F::f(a[i], b[i]);
  put(at<R>(w, ins.d), values, lanes);
}
template <class R, class A, class B, class C, class F>
void ternary(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const A* a = at<A>(w, ins.a);
  const B* b = at<B>(w, ins.b);
  const C* c = at<C>(w, ins.c);
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = F::f(a[i], b[i], c[i]);
  put(at<R>(w, ins.d), values, lanes);
}

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
using Wide = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>,
    std::conditional_t<
        sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>,
        std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;

struct Add {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return canonical(a + b);
    else
      return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
};
struct Sub {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return canonical(a - b);
    else
      return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  }
};
struct Mul {  // floating point, or the lower half
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return canonical(a * b);
    else
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
};
struct MulHigh {
  template <class T>
  static T f(T a, T b) {
    return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (8 * sizeof(T)));
  }
};
struct MulWide {
  template <class T>
  static Wide<T> f(T a, T b) {
    return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
  }
};
struct Mad {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(Mul::f(a, b), c);
  }
};
struct MadHigh {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(MulHigh::f(a, b), c);
  }
};
struct MadWide {
  template <class T>
  static Wide<T> f(T a, T b, Wide<T> c) {
    return Add::f(static_cast<Wide<T>>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)), c);
  }
};
struct Fma {
  template <class T>
  static T f(T a, T b, T c) {
    return canonical(std::fma(a, b, c));
  }
};
struct Div {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return canonical(a / b);
    } else {
      if (b == 0) return static_cast<T>(~T{0});
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Sub::f(T{0}, a);
      return a / b;
    }
  }
};
struct Rem {
  template <class T>
  static T f(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return a % b;
  }
};
struct Neg {
  template <class T>
  static T f(T a) {
    if constexpr (std::is_floating_point_v<T>)
      return -a;
    else
      return Sub::f(T{0}, a);
  }
};
struct Abs {
  template <class T>
  static T f(T a) {
    if constexpr (std::is_same_v<T, float>)
      return float32(bits32(a) & 0x7fffffffu);
    else if constexpr (std::is_same_v<T, double>)
      return std::fabs(a);
    else
      return a < 0 ? Neg::f(a) : a;
  }
};
struct Min {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return smaller(a, b);
    else
      return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return larger(a, b);
    else
      return a > b ? a : b;
  }
};
struct Sqrt {
  template <class T>
  static T f(T a) {
    return canonical(std::sqrt(a));
  }
};
struct Rcp {
  template <class T>
  static T f(T a) {
    return canonical(T{1} / a);
  }
};
// The approximations are better than a device's, whose last bits differ.
struct Rsqrt {
  template <class T>
  static T f(T a) {
    return canonical(static_cast<T>(1.0 / std::sqrt(static_cast<double>(a))));
  }
};
struct Exp2 {
  static float f(float a) { return canonical(static_cast<float>(std::exp2(static_cast<double>(a)))); }
};
struct Log2 {
  static float f(float a) { return canonical(static_cast<float>(std::log2(static_cast<double>(a)))); }
};
struct Sin {
  static float f(float a) { return canonical(static_cast<float>(std::sin(static_cast<double>(a)))); }
};
struct Cos {
  static float f(float a) { return canonical(static_cast<float>(std::cos(static_cast<double>(a)))); }
};
struct Tanh {
  static float f(float a) { return canonical(static_cast<float>(std::tanh(static_cast<double>(a)))); }
};
struct CopySign {
  template <class T>
  static T f(T a, T b) {
    return std::copysign(b, a);
  }
};
struct Saturate {
  static float f(float a) { return a != a || a < 0 ? 0.0f : a > 1 ? 1.0f : a; }
};
template <class Inner>
struct Saturated {
  static float f(float a, float b) { return Saturate::f(Inner::f(a, b)); }
  static float f(float a, float b, float c) { return Saturate::f(Inner::f(a, b, c)); }
};
inline float flushed(float a) {
  return (bits32(a) & 0x7f800000u) == 0 ? float32(bits32(a) & 0x80000000u) : a;
}
template <class Inner>
struct Flushed {
  static float f(float a) { return flushed(Inner::f(flushed(a))); }
  static float f(float a, float b) { return flushed(Inner::f(flushed(a), flushed(b))); }
  static float f(float a, float b, float c) {
    return flushed(Inner::f(flushed(a), flushed(b), flushed(c)));
  }
};
struct And {
  template <class T>
  static T f(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T f(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T f(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  static T f(T a) {
    return ~a;
  }
};
struct Same {
  template <class T>
  static T f(T a) {
    return a;
  }
};
struct Shl {
  template <class T>
  static T f(T a, std::uint32_t b) {
    return b >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << b);
  }
};
struct Shr {
  template <class T>
  static T f(T a, std::uint32_t b) {
    constexpr std::uint32_t kMost = 8 * sizeof(T) - 1;
    if constexpr (std::is_signed_v<T>)
      return static_cast<T>(a >> (b > kMost ? kMost : b));
    else
      return b > kMost ? T{0} : static_cast<T>(a >> b);
  }
};
template <bool kLeft, bool kWrap>
struct Funnel {
  static std::uint32_t f(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const unsigned n = kWrap ? c & 31 : c > 32 ? 32 : c;
    const std::uint64_t both = (std::uint64_t{b} << 32) | a;
    return kLeft ? static_cast<std::uint32_t>((both << n) >> 32)
                 : static_cast<std::uint32_t>(both >> n);
  }
};
struct Popc {
  template <class T>
  static std::uint32_t f(T a) {
    return static_cast<std::uint32_t>(std::popcount(a));
  }
};
struct Clz {
  template <class T>
  static std::uint32_t f(T a) {
    return static_cast<std::uint32_t>(std::countl_zero(a));
  }
};
struct Brev {
  template <class T>
  static T f(T a) {
    T result = 0;
    for (unsigned i = 0; i < 8 * sizeof(T); ++i) result |= ((a >> i) & T{1}) << (8 * sizeof(T) - 1 - i);
    return result;
  }
};
template <bool kShift>
struct Bfind {
  template <class T>
  static std::uint32_t f(T a) {
    using U = Unsigned<T>;
    U bits = static_cast<U>(a);
    if constexpr (std::is_signed_v<T>) {
      if (a < 0) bits = ~bits;
    }
    if (bits == 0) return ~0u;
    const auto zeros = static_cast<std::uint32_t>(std::countl_zero(bits));
    return kShift ? zeros : 8 * sizeof(T) - 1 - zeros;
  }
};
struct Bfe {
  template <class T>
  static T f(T a, std::uint32_t b, std::uint32_t c) {
    constexpr unsigned kBits = 8 * sizeof(T);
    const unsigned position = b & 0xff, length = c & 0xff;
    if (length == 0) return 0;
    bool sign = false;
    if constexpr (std::is_signed_v<T>)
      sign = ((static_cast<Unsigned<T>>(a) >> std::min(position + length - 1, kBits - 1)) & 1) != 0;
    Unsigned<T> result = sign ? ~Unsigned<T>{0} : Unsigned<T>{0};
    for (unsigned i = 0; i < length && i < kBits && position + i < kBits; ++i) {
      const Unsigned<T> bit = (static_cast<Unsigned<T>>(a) >> (position + i)) & 1;
      result = (result & ~(Unsigned<T>{1} << i)) | (bit << i);
    }
    return static_cast<T>(result);
  }
};
template <class T>
void bfi(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const T *a = at<T>(w, ins.a), *b = at<T>(w, ins.b);
  const std::uint32_t *c = at<std::uint32_t>(w, ins.c), *e = at<std::uint32_t>(w, ins.e);
  T values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    const unsigned position = c[i] & 0xff, length = e[i] & 0xff;
    T mask = length >= 8 * sizeof(T) ? ~T{0} : static_cast<T>((T{1} << length) - 1);
    if (position >= 8 * sizeof(T)) mask = 0;
    const unsigned shift = position & (8 * sizeof(T) - 1);
    values[i] = (b[i] & ~static_cast<T>(mask << shift)) | static_cast<T>((a[i] & mask) << shift);
  }
  put(at<T>(w, ins.d), values, lanes);
}
void lop3(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const std::uint32_t *a = at<std::uint32_t>(w, ins.a), *b = at<std::uint32_t>(w, ins.b),
                      *c = at<std::uint32_t>(w, ins.c);
  std::uint32_t values[kLanes] = {};
  for (unsigned row = 0; row < 8; ++row) {
    if (((ins.how >> row) & 1) == 0) continue;
    const std::uint32_t x = (row & 4) != 0 ? 0 : kAll, y = (row & 2) != 0 ? 0 : kAll,
                        z = (row & 1) != 0 ? 0 : kAll;
    for (unsigned i = 0; i < kLanes; ++i) values[i] |= (a[i] ^ x) & (b[i] ^ y) & (c[i] ^ z);
  }
  put(at<std::uint32_t>(w, ins.d), values, lanes);
}
struct Prmt {
  static std::uint32_t f(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint64_t both = (std::uint64_t{b} << 32) | a;
    std::uint32_t result = 0;
    for (unsigned i = 0; i < 4; ++i) {
      const std::uint32_t pick = (c >> (4 * i)) & 0xf;
      std::uint32_t byte = static_cast<std::uint32_t>(both >> (8 * (pick & 7))) & 0xff;
      const std::uint32_t sign = (byte & 0x80) != 0 ? 0xffu : 0u;
      byte = (pick & 8) != 0 ? sign : byte;
      result |= byte << (8 * i);
    }
    return result;
  }
};
template <bool kA, bool kB>
struct Dp4a {  // signed or not
  static std::uint32_t f(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    for (unsigned i = 0; i < 4; ++i) {
      const auto x = static_cast<std::uint8_t>(a >> (8 * i)), y = static_cast<std::uint8_t>(b >> (8 * i));
      const std::int32_t p = kA ? static_cast<std::int8_t>(x) : x, q = kB ? static_cast<std::int8_t>(y) : y;
      c += static_cast<std::uint32_t>(p * q);
    }
    return c;
  }
};
struct Sad {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(c, a < b ? Sub::f(b, a) : Sub::f(a, b));
  }
};

// ---- Predicates ----------------------------------------------------------------------------------

enum Compare : std::uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };

template <class T, Compare kCompare>
inline bool compare(T a, T b) {
  if constexpr (kCompare == kEq) return a == b;
  if constexpr (kCompare == kNe) {
    if constexpr (std::is_floating_point_v<T>)
      return a < b || a > b;
    else
      return a != b;
  }
  if constexpr (kCompare == kLt) return a < b;
  if constexpr (kCompare == kLe) return a <= b;
  if constexpr (kCompare == kGt) return a > b;
  if constexpr (kCompare == kGe) return a >= b;
  if constexpr (kCompare == kEqu) return !(a < b || a > b);
  if constexpr (kCompare == kNeu) return !(a == b);
  if constexpr (kCompare == kLtu) return !(a >= b);
  if constexpr (kCompare == kLeu) return !(a > b);
  if constexpr (kCompare == kGtu) return !(a <= b);
  if constexpr (kCompare == kGeu) return !(a < b);
  if constexpr (kCompare == kNum) return a == a && b == b;
  return a != a || b != b;
}
template <class T, Compare kCompare>
std::uint32_t compare_all(Warp& w, const Ins& ins) {
  const T *a = at<T>(w, ins.a), *b = at<T>(w, ins.b);
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < kLanes; ++i)
    bits |= static_cast<std::uint32_t>(compare<T, kCompare>(a[i], b[i])) << i;
  return bits;
}
/// how: 0 none, 1 and, 2 or, 3 xor, with the predicate c (+4: negated).
template <class T, Compare kCompare>
void setp(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const std::uint32_t bits = compare_all<T, kCompare>(w, ins);
  std::uint32_t first = bits, second = ~bits;
  if (ins.how != 0) {
    std::uint32_t c = *at<std::uint32_t>(w, ins.c);
    if ((ins.how & 4) != 0) c = ~c;
    const unsigned how = ins.how & 3;
    first = how == 1 ? bits & c : how == 2 ? bits | c : bits ^ c;
    second = how == 1 ? ~bits & c : how == 2 ? ~bits | c : ~bits ^ c;
  }
  if (ins.d != ~0u) put_predicate(w, ins.d, first, lanes);
  if (ins.has_d2) put_predicate(w, ins.d2, second, lanes);
}
template <class T, Compare kCompare>
void set(Warp& w, const Ins& ins, std::uint32_t lanes) {  // how: 1, the result is 1.0f
  const std::uint32_t bits = compare_all<T, kCompare>(w, ins);
  std::uint32_t values[kLanes];
  const std::uint32_t one = ins.how == 1 ? 0x3f800000u : kAll;
  for (unsigned i = 0; i < kLanes; ++i) values[i] = ((bits >> i) & 1) != 0 ? one : 0;
  put(at<std::uint32_t>(w, ins.d), values, lanes);
}
template <class T>
void selp(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const T *a = at<T>(w, ins.a), *b = at<T>(w, ins.b);
  std::uint32_t c = *at<std::uint32_t>(w, ins.c);
  if (ins.how != 0) c = ~c;
  T values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = ((c >> i) & 1) != 0 ? a[i] : b[i];
  put(at<T>(w, ins.d), values, lanes);
}
template <class F>
void predicates(Warp& w, const Ins& ins, std::uint32_t lanes) {
  put_predicate(w, ins.d, F::f(*at<std::uint32_t>(w, ins.a), *at<std::uint32_t>(w, ins.b)), lanes);
}
template <class F>
void predicate(Warp& w, const Ins& ins, std::uint32_t lanes) {
  put_predicate(w, ins.d, F::f(*at<std::uint32_t>(w, ins.a)), lanes);
}
/// how: finite 0, infinite 1, number 2, notanumber 3, normal 4, subnormal 5.
template <class T>
void testp(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const T* a = at<T>(w, ins.a);
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    const int kind = std::fpclassify(a[i]);
    const bool yes = ins.how == 0   ? kind != FP_NAN && kind != FP_INFINITE
                     : ins.how == 1 ? kind == FP_INFINITE
                     : ins.how == 2 ? kind != FP_NAN
                     : ins.how == 3 ? kind == FP_NAN
                     : ins.how == 4 ? kind == FP_NORMAL
                                    : kind == FP_SUBNORMAL;
    bits |= std::uint32_t{yes} << i;
  }
  put_predicate(w, ins.d, bits, lanes);
}

// ---- Conversions ---------------------------------------------------------------------------------

/// Between integers; S and D are what the registers are read and written as.
template <class R, class D, class RS, class S>
void cvt_integer(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const RS* a = at<RS>(w, ins.a);
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    const S value = static_cast<S>(a[i]);
    D result = static_cast<D>(value);
    if (ins.how == 1) {  // sat
      if constexpr (std::is_signed_v<D> || std::is_signed_v<S> || sizeof(D) < sizeof(S)) {
        const auto wide = static_cast<__int128>(value);
        const auto low = static_cast<__int128>(std::numeric_limits<D>::min());
        const auto high = static_cast<__int128>(std::numeric_limits<D>::max());
        result = static_cast<D>(wide < low ? low : wide > high ? high : wide);
      }
    }
    values[i] = static_cast<R>(result);
  }
  put(at<R>(w, ins.d), values, lanes);
}

enum Round : std::uint8_t { kNone, kRn, kRz, kRm, kRp, kRni, kRzi, kRmi, kRpi, kRna };
constexpr std::uint8_t kSat = 16, kFtz = 32;

double rounded(double value, unsigned how) {
  switch (how & 15) {
    case kRni: return std::nearbyint(value);
    case kRzi: return std::trunc(value);
    case kRmi: return std::floor(value);
    case kRpi: return std::ceil(value);
    default: return value;
  }
}
template <class S>
inline float single_of(S value) {
  if constexpr (std::is_same_v<S, F16> || std::is_same_v<S, Bf16>)
    return widen(value);
  else
    return value;
}
template <class R, class D, class S>
void cvt_to_integer(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const S* a = at<S>(w, ins.a);
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    double value;
    if constexpr (std::is_same_v<S, double>)
      value = a[i];
    else
      value = (ins.how & kFtz) != 0 ? flushed(single_of(a[i])) : single_of(a[i]);
    values[i] = static_cast<R>(integer_of<D>(rounded(value, ins.how)));
  }
  put(at<R>(w, ins.d), values, lanes);
}
template <class D, class RS, class S>
void cvt_from_integer(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const RS* a = at<RS>(w, ins.a);
  D values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    const S value = static_cast<S>(a[i]);
    if constexpr (std::is_same_v<D, F16> || std::is_same_v<D, Bf16>)
      values[i] = narrow<D>(static_cast<float>(value));  // exact for up to 24 bits
    else
      values[i] = static_cast<D>(value);
  }
  put(at<D>(w, ins.d), values, lanes);
}
template <class D, class S>
void cvt_float(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const S* a = at<S>(w, ins.a);
  D values[kLanes];
  const bool sat = (ins.how & kSat) != 0, ftz = (ins.how & kFtz) != 0;
  const unsigned round = ins.how & 15;
  for (unsigned i = 0; i < kLanes; ++i) {
    if constexpr (std::is_same_v<D, double> || std::is_same_v<S, double>) {
      double value;
      if constexpr (std::is_same_v<S, double>)
        value = a[i];
      else
        value = single_of(a[i]);
      if (round >= kRni) value = rounded(value, round);
      if constexpr (std::is_same_v<D, float>)
        values[i] = canonical(static_cast<float>(value));
      else if constexpr (std::is_same_v<D, double>)
        values[i] = value;
    } else {
      float value = single_of(a[i]);
      if (ftz) value = flushed(value);
      if (round >= kRni) value = static_cast<float>(rounded(value, round));
      if (sat) value = Saturate::f(value);
      if constexpr (std::is_same_v<D, float>)
        values[i] = canonical(value);
      else
        values[i] = narrow<D>(value);
    }
  }
  put(at<D>(w, ins.d), values, lanes);
}
/// Two numbers of 32 bits become one pair; a is the upper one. how: relu 64.
template <class D>
void cvt_pair(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const float *a = at<float>(w, ins.a), *b = at<float>(w, ins.b);
  std::uint32_t values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i)
    values[i] = (std::uint32_t{narrow<D>(a[i]).bits} << 16) | narrow<D>(b[i]).bits;
  put(at<std::uint32_t>(w, ins.d), values, lanes);
}
/// Rounded another way than to nearest: bf16 and f16 cut off.
template <class D>
void cvt_cut(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const float* a = at<float>(w, ins.a);
  D values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    D near = narrow<D>(a[i]);
    if (a[i] == a[i] && std::fabs(widen(near)) > std::fabs(a[i])) --near.bits;
    values[i] = near;
  }
  put(at<D>(w, ins.d), values, lanes);
}

// ---- Half precision arithmetic: by f32, which rounds as if at once (but for fma, by f64) ----------

template <class H>
struct Halves {
  template <class F>
  static void two(Warp& w, const Ins& ins, std::uint32_t lanes) {
    const H *a = at<H>(w, ins.a), *b = at<H>(w, ins.b);
    H values[kLanes];
    for (unsigned i = 0; i < kLanes; ++i) values[i] = narrow<H>(F::f(widen(a[i]), widen(b[i])));
    put(at<H>(w, ins.d), values, lanes);
  }
  template <class F>
  static void two_pairs(Warp& w, const Ins& ins, std::uint32_t lanes) {
    const std::uint32_t *a = at<std::uint32_t>(w, ins.a), *b = at<std::uint32_t>(w, ins.b);
    std::uint32_t values[kLanes];
    const auto half = [](std::uint32_t x, unsigned shift) {
      return widen(H{static_cast<std::uint16_t>(x >> shift)});
    };
    for (unsigned i = 0; i < kLanes; ++i)
      values[i] = (std::uint32_t{narrow<H>(F::f(half(a[i], 16), half(b[i], 16))).bits} << 16) |
                  narrow<H>(F::f(half(a[i], 0), half(b[i], 0))).bits;
    put(at<std::uint32_t>(w, ins.d), values, lanes);
  }
};

// ---- Warp-wide -----------------------------------------------------------------------------------

/// how: 0 up, 1 down, 2 bfly, 3 idx.
void shfl(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const std::uint32_t *a = at<std::uint32_t>(w, ins.a), *b = at<std::uint32_t>(w, ins.b),
                      *c = at<std::uint32_t>(w, ins.c);
  std::uint32_t values[kLanes] = {}, found = 0;
  for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
    const int lane = static_cast<int>(first_lane(left));
    const int offset = static_cast<int>(b[lane] & 31), clamp = static_cast<int>(c[lane] & 31),
              segment = static_cast<int>((c[lane] >> 8) & 31);
    const int most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int from = 0;
    bool fine = false;
    switch (ins.how) {
      case 0: from = lane - offset; fine = from >= most; break;
      case 1: from = lane + offset; fine = from <= most; break;
      case 2: from = lane ^ offset; fine = from <= most; break;
      default: from = least | (offset & ~segment); fine = from <= most; break;
    }
    if (!fine) from = lane;
    if (((lanes >> from) & 1) == 0)
      fault(w, FaultKind::kInstruction, static_cast<unsigned>(lane),
            "takes the value of lane " + std::to_string(from) + ", which takes no part");
    values[lane] = a[from];
    found |= std::uint32_t{fine} << lane;
  }
  put(at<std::uint32_t>(w, ins.d), values, lanes);
  if (ins.has_d2) put_predicate(w, ins.d2, found, lanes);
}
/// how: 0 all, 1 any, 2 uni, 3 ballot (+4: negated).
void vote(Warp& w, const Ins& ins, std::uint32_t lanes) {
  std::uint32_t a = *at<std::uint32_t>(w, ins.a);
  if ((ins.how & 4) != 0) a = ~a;
  a &= lanes;
  const unsigned how = ins.how & 3;
  if (how == 3) {
    std::uint32_t values[kLanes];
    for (unsigned i = 0; i < kLanes; ++i) values[i] = a;
    put(at<std::uint32_t>(w, ins.d), values, lanes);
    return;
  }
  const bool yes = how == 0 ? a == lanes : how == 1 ? a != 0 : a == 0 || a == lanes;
  put_predicate(w, ins.d, yes ? kAll : 0, lanes);
}
template <class T, bool kAllSame>
void match(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const T* a = at<T>(w, ins.a);
  std::uint32_t values[kLanes] = {};
  for (unsigned i = 0; i < kLanes; ++i)
    for (unsigned k = 0; k < kLanes; ++k)
      if (((lanes >> k) & 1) != 0 && a[k] == a[i]) values[i] |= 1u << k;
  if constexpr (kAllSame) {
    const bool same = values[first_lane(lanes)] == lanes;
    for (std::uint32_t& value : values) value = same ? lanes : 0;
    if (ins.has_d2) put_predicate(w, ins.d2, same ? kAll : 0, lanes);
  }
  put(at<std::uint32_t>(w, ins.d), values, lanes);
}
template <class T, class F>
void redux(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const T* a = at<T>(w, ins.a);
  T result = a[first_lane(lanes)], values[kLanes];
  for (std::uint32_t left = lanes & (lanes - 1); left != 0; left &= left - 1)
    result = F::f(result, a[first_lane(left)]);
  for (T& value : values) value = result;
  put(at<T>(w, ins.d), values, lanes);
}
void elect(Warp& w, const Ins& ins, std::uint32_t lanes) {
  std::uint32_t values[kLanes];
  for (std::uint32_t& value : values) value = first_lane(lanes);
  if (ins.d != ~0u) put(at<std::uint32_t>(w, ins.d), values, lanes);
  if (ins.has_d2) put_predicate(w, ins.d2, 1u << first_lane(lanes), lanes);
}
void activemask(Warp& w, const Ins& ins, std::uint32_t lanes) {
  std::uint32_t values[kLanes];
  for (std::uint32_t& value : values) value = lanes;
  put(at<std::uint32_t>(w, ins.d), values, lanes);
}

// ---- Others --------------------------------------------------------------------------------------

void nothing(Warp&, const Ins&, std::uint32_t) {}
void fence(Warp&, const Ins&, std::uint32_t) { std::atomic_thread_fence(std::memory_order_seq_cst); }
void trap(Warp& w, const Ins&, std::uint32_t lanes) {
  fault(w, FaultKind::kInstruction, first_lane(lanes), "trap");
}
void clock32(Warp& w, const Ins& ins, std::uint32_t lanes) {
  std::uint32_t values[kLanes];
  for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(__builtin_ia32_rdtsc());
  put(at<std::uint32_t>(w, ins.d), values, lanes);
}
void clock64(Warp& w, const Ins& ins, std::uint32_t lanes) {
  std::uint64_t values[kLanes];
  for (std::uint64_t& value : values) value = __builtin_ia32_rdtsc();
  put(at<std::uint64_t>(w, ins.d), values, lanes);
}
/// d: a wide register; v: its parts. kSplit: the other way round.
template <class W, class P, bool kSplit>
void parts(Warp& w, const Ins& ins, std::uint32_t lanes) {
  constexpr unsigned kParts = sizeof(W) / sizeof(P);
  if constexpr (kSplit) {
    const W* a = at<W>(w, ins.a);
    W copy[kLanes];
    std::copy(a, a + kLanes, copy);
    for (unsigned part = 0; part < kParts; ++part) {
      if (ins.v[part] == ~0u) continue;
      P values[kLanes];
      for (unsigned i = 0; i < kLanes; ++i)
        values[i] = static_cast<P>(copy[i] >> (8 * sizeof(P) * part));
      put(at<P>(w, ins.v[part]), values, lanes);
    }
  } else {
    W values[kLanes] = {};
    for (unsigned part = 0; part < kParts; ++part) {
      const P* a = at<P>(w, ins.v[part]);
      for (unsigned i = 0; i < kLanes; ++i)
        values[i] |= static_cast<W>(static_cast<W>(a[i]) << (8 * sizeof(P) * part));
    }
    put(at<W>(w, ins.d), values, lanes);
  }
}
/// Addresses of a space become generic ones and back: imm is the window.
template <class R, class A>
void to_generic(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const A* a = at<A>(w, ins.a);
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = static_cast<R>(a[i] + static_cast<R>(ins.imm));
  put(at<R>(w, ins.d), values, lanes);
}
void isspacep(Warp& w, const Ins& ins, std::uint32_t lanes) {
  const auto* a = at<std::uint64_t>(w, ins.a);
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    const auto window = static_cast<std::uint64_t>(ins.imm);
    const bool in = window == 0 ? a[i] < kSharedWindow : a[i] >= window && a[i] < window + kWindowBytes;
    bits |= std::uint32_t{in} << i;
  }
  put_predicate(w, ins.d, bits, lanes);
}

struct Exchange {
  template <class T>
  static T f(T, T b, T) { return b; }
};
struct CompareAndSwap {
  template <class T>
  static T f(T a, T b, T c) { return a == b ? c : a; }
};
struct Increment {
  static std::uint32_t f(std::uint32_t a, std::uint32_t b, std::uint32_t) { return a >= b ? 0 : a + 1; }
};
struct Decrement {
  static std::uint32_t f(std::uint32_t a, std::uint32_t b, std::uint32_t) {
    return a == 0 || a > b ? b : a - 1;
  }
};
template <class Two>
struct FirstTwo {
  template <class T>
  static T f(T a, T b, T) { return Two::f(a, b); }
};

// ---- Choosing ------------------------------------------------------------------------------------

template <class F, class... More>
Fn by_integer(const std::string& type) {
  if (type == "s16") return F::template get<std::int16_t>();
  if (type == "u16" || type == "b16") return F::template get<std::uint16_t>();
  if (type == "s32") return F::template get<std::int32_t>();
  if (type == "u32" || type == "b32") return F::template get<std::uint32_t>();
  if (type == "s64") return F::template get<std::int64_t>();
  if (type == "u64" || type == "b64") return F::template get<std::uint64_t>();
  return nullptr;
}
template <class F>
Fn by_number(const std::string& type) {
  if (type == "f32") return F::template get<float>();
  if (type == "f64") return F::template get<double>();
  return by_integer<F>(type);
}
template <class F>
struct Unary {
  template <class T>
  static Fn get() { return unary<T, T, F>; }
};
template <class F>
struct Binary {
  template <class T>
  static Fn get() { return binary<T, T, T, F>; }
};
template <class F>
struct Ternary {
  template <class T>
  static Fn get() { return ternary<T, T, T, T, F>; }
};
template <class F>
struct Shifts {
  template <class T>
  static Fn get() { return binary<T, T, std::uint32_t, F>; }
};
struct WideMul {
  template <class T>
  static Fn get() {
    if constexpr (sizeof(T) < 8) return binary<Wide<T>, T, T, MulWide>;
    return nullptr;
  }
};
struct WideMad {
  template <class T>
  static Fn get() {
    if constexpr (sizeof(T) < 8) return ternary<Wide<T>, T, T, Wide<T>, MadWide>;
    return nullptr;
  }
};
template <class F>
struct ToU32 {
  template <class T>
  static Fn get() { return unary<std::uint32_t, T, F>; }
};
struct Fields {
  template <class T>
  static Fn get() { return ternary<T, T, std::uint32_t, std::uint32_t, Bfe>; }
};
template <template <class, Compare> class F>
struct Comparing {
  template <class T>
  static Fn get(Compare how) {
    switch (how) {
      case kEq: return F<T, kEq>::fn;
      case kNe: return F<T, kNe>::fn;
      case kLt: return F<T, kLt>::fn;
      case kLe: return F<T, kLe>::fn;
      case kGt: return F<T, kGt>::fn;
      case kGe: return F<T, kGe>::fn;
      case kEqu: return F<T, kEqu>::fn;
      case kNeu: return F<T, kNeu>::fn;
      case kLtu: return F<T, kLtu>::fn;
      case kLeu: return F<T, kLeu>::fn;
      case kGtu: return F<T, kGtu>::fn;
      case kGeu: return F<T, kGeu>::fn;
      case kNum: return F<T, kNum>::fn;
      case kNan: return F<T, kNan>::fn;
    }
    return nullptr;
  }
};
template <class T, Compare kCompare>
struct SetpFn {
  static constexpr Fn fn = setp<T, kCompare>;
};
template <class T, Compare kCompare>
struct SetFn {
  static constexpr Fn fn = set<T, kCompare>;
};
template <class C>
Fn comparing(const std::string& type, Compare how) {
  if (type == "s16") return C::template get<std::int16_t>(how);
  if (type == "u16" || type == "b16") return C::template get<std::uint16_t>(how);
  if (type == "s32") return C::template get<std::int32_t>(how);
  if (type == "u32" || type == "b32") return C::template get<std::uint32_t>(how);
  if (type == "s64") return C::template get<std::int64_t>(how);
  if (type == "u64" || type == "b64") return C::template get<std::uint64_t>(how);
  if (type == "f32") return C::template get<float>(how);
  if (type == "f64") return C::template get<double>(how);
  return nullptr;
}

bool compare_of(const std::string& word, bool is_float, Compare& how) {
  static const std::unordered_map<std::string, Compare> known = {
      {"eq", kEq}, {"ne", kNe}, {"lt", kLt}, {"le", kLe}, {"gt", kGt}, {"ge", kGe},
      {"equ", kEqu}, {"neu", kNeu}, {"ltu", kLtu}, {"leu", kLeu}, {"gtu", kGtu}, {"geu", kGeu},
      {"num", kNum}, {"nan", kNan}, {"lo", kLt}, {"ls", kLe}, {"hi", kGt}, {"hs", kGe}};
  auto found = known.find(word);
  if (found == known.end()) return false;
  how = found->second;
  (void)is_float;
  return true;
}

template <class R, class D>
Fn integer_from(const std::string& source, unsigned bytes) {
  const auto pick = [&]<class S>(S) -> Fn {
    switch (bytes) {
      case 2: return cvt_integer<R, D, std::uint16_t, S>;
      case 4: return cvt_integer<R, D, std::uint32_t, S>;
      case 8: return cvt_integer<R, D, std::uint64_t, S>;
    }
    return nullptr;
  };
  if (source == "u8") return pick(std::uint8_t{});
  if (source == "s8") return pick(std::int8_t{});
  if (source == "u16") return pick(std::uint16_t{});
  if (source == "s16") return pick(std::int16_t{});
  if (source == "u32") return pick(std::uint32_t{});
  if (source == "s32") return pick(std::int32_t{});
  if (source == "u64") return pick(std::uint64_t{});
  if (source == "s64") return pick(std::int64_t{});
  if (source == "f32") return cvt_to_integer<R, D, float>;
  if (source == "f64") return cvt_to_integer<R, D, double>;
  if (source == "f16") return cvt_to_integer<R, D, F16>;
  if (source == "bf16") return cvt_to_integer<R, D, Bf16>;
  return nullptr;
}
template <class D>
Fn integer_to(unsigned bytes, const std::string& source, unsigned source_bytes) {
  using S2 = std::conditional_t<std::is_signed_v<D>, std::int16_t, std::uint16_t>;
  using S4 = std::conditional_t<std::is_signed_v<D>, std::int32_t, std::uint32_t>;
  using S8 = std::conditional_t<std::is_signed_v<D>, std::int64_t, std::uint64_t>;
  switch (bytes) {
    case 2: return integer_from<S2, D>(source, source_bytes);
    case 4: return integer_from<S4, D>(source, source_bytes);
    case 8: return integer_from<S8, D>(source, source_bytes);
  }
  return nullptr;
}
template <class D>
Fn float_from(const std::string& source, unsigned bytes) {
  const auto pick = [&]<class S>(S) -> Fn {
    switch (bytes) {
      case 2: return cvt_from_integer<D, std::uint16_t, S>;
      case 4: return cvt_from_integer<D, std::uint32_t, S>;
      case 8: return cvt_from_integer<D, std::uint64_t, S>;
    }
    return nullptr;
  };
  if (source == "u8") return pick(std::uint8_t{});
  if (source == "s8") return pick(std::int8_t{});
  if (source == "u16") return pick(std::uint16_t{});
  if (source == "s16") return pick(std::int16_t{});
  if (source == "u32") return pick(std::uint32_t{});
  if (source == "s32") return pick(std::int32_t{});
  if (source == "u64") return pick(std::uint64_t{});
  if (source == "s64") return pick(std::int64_t{});
  if (source == "f32") return cvt_float<D, float>;
  if (source == "f64") {
    if constexpr (std::is_same_v<D, F16> || std::is_same_v<D, Bf16>) return nullptr;
    return cvt_float<D, double>;
  }
  if (source == "f16") return cvt_float<D, F16>;
  if (source == "bf16") return cvt_float<D, Bf16>;
  return nullptr;
}

template <class T, class R, bool kStore>
Fn access(unsigned count, Space space) {
  const auto in = [&]<unsigned kCount>(std::integral_constant<unsigned, kCount>) -> Fn {
    if constexpr (kStore) {
      switch (space) {
        case Space::kGlobal: return store<T, R, kCount, Space::kGlobal>;
        case Space::kShared: return store<T, R, kCount, Space::kShared>;
        case Space::kLocal: return store<T, R, kCount, Space::kLocal>;
        case Space::kGeneric: return store<T, R, kCount, Space::kGeneric>;
        default: return nullptr;
      }
    } else {
      switch (space) {
        case Space::kGlobal: return load<T, R, kCount, Space::kGlobal>;
        case Space::kShared: return load<T, R, kCount, Space::kShared>;
        case Space::kLocal: return load<T, R, kCount, Space::kLocal>;
        case Space::kParam: return load<T, R, kCount, Space::kParam>;
        case Space::kGeneric: return load<T, R, kCount, Space::kGeneric>;
      }
    }
    return nullptr;
  };
  switch (count) {
    case 1: return in(std::integral_constant<unsigned, 1>{});
    case 2: return in(std::integral_constant<unsigned, 2>{});
    case 4: return in(std::integral_constant<unsigned, 4>{});
    case 8: return in(std::integral_constant<unsigned, 8>{});
  }
  return nullptr;
}
template <bool kStore>
Fn access_of(const std::string& type, unsigned bytes, unsigned count, Space space) {
  const bool is_signed = type[0] == 's';
  const unsigned memory = static_cast<unsigned>(
      std::atoi(type.c_str() + type.find_first_of("0123456789"))) / 8;
  if (type == "b128") return nullptr;
#define PTX_ACCESS(T, S)                                                                      \
  switch (bytes) {                                                                            \
    case 2: if constexpr (sizeof(T) <= 2) return is_signed ? access<S, std::int16_t, kStore>(count, space) : access<T, std::uint16_t, kStore>(count, space); break; \
    case 4: if constexpr (sizeof(T) <= 4) return is_signed ? access<S, std::int32_t, kStore>(count, space) : access<T, std::uint32_t, kStore>(count, space); break; \
    case 8: return is_signed ? access<S, std::int64_t, kStore>(count, space) : access<T, std::uint64_t, kStore>(count, space); \
  }                                                                                           \
  return nullptr;
  switch (memory) {
    case 1: PTX_ACCESS(std::uint8_t, std::int8_t)
    case 2: PTX_ACCESS(std::uint16_t, std::int16_t)
    case 4: PTX_ACCESS(std::uint32_t, std::int32_t)
    case 8: PTX_ACCESS(std::uint64_t, std::int64_t)
  }
#undef PTX_ACCESS
  return nullptr;
}

template <Space kSpace>
Fn atomic_in(const std::string& op, const std::string& type) {
  const auto integer = [&]<class U, class S>(U, S) -> Fn {
    const bool is_signed = type[0] == 's';
    if (op == "add") return atomic<U, FirstTwo<Add>, kSpace>;
    if (op == "min") return is_signed ? atomic<S, FirstTwo<Min>, kSpace> : atomic<U, FirstTwo<Min>, kSpace>;
    if (op == "max") return is_signed ? atomic<S, FirstTwo<Max>, kSpace> : atomic<U, FirstTwo<Max>, kSpace>;
    if (op == "and") return atomic<U, FirstTwo<And>, kSpace>;
    if (op == "or") return atomic<U, FirstTwo<Or>, kSpace>;
    if (op == "xor") return atomic<U, FirstTwo<Xor>, kSpace>;
    if (op == "exch") return atomic<U, Exchange, kSpace>;
    if (op == "cas") return atomic<U, CompareAndSwap, kSpace>;
    return nullptr;
  };
  if (type == "u32" && op == "inc") return atomic<std::uint32_t, Increment, kSpace>;
  if (type == "u32" && op == "dec") return atomic<std::uint32_t, Decrement, kSpace>;
  if (type == "f32" && op == "add") return atomic<float, FirstTwo<Add>, kSpace>;
  if (type == "f64" && op == "add") return atomic<double, FirstTwo<Add>, kSpace>;
  if (type == "u32" || type == "s32" || type == "b32")
    return integer(std::uint32_t{}, std::int32_t{});
  if (type == "u64" || type == "s64" || type == "b64")
    return integer(std::uint64_t{}, std::int64_t{});
  if (type == "b16" && op == "cas") return atomic<std::uint16_t, CompareAndSwap, kSpace>;
  return nullptr;
}

unsigned bytes_of_type(const std::string& type) {
  if (type == "pred") return 0;
  if (type == "f16x2" || type == "bf16x2" || type == "u16x2" || type == "s16x2") return 4;
  const std::size_t digits = type.find_first_of("0123456789");
  if (digits == std::string::npos) return 0;
  return static_cast<unsigned>(std::atoi(type.c_str() + digits)) / 8;
}
bool is_type(const std::string& word) {
  static const std::unordered_map<std::string, int> known = {
      {"pred", 0}, {"b8", 0}, {"u8", 0}, {"s8", 0}, {"b16", 0}, {"u16", 0}, {"s16", 0}, {"f16", 0},
      {"bf16", 0}, {"b32", 0}, {"u32", 0}, {"s32", 0}, {"f32", 0}, {"b64", 0}, {"u64", 0},
      {"s64", 0}, {"f64", 0}, {"f16x2", 0}, {"bf16x2", 0}, {"b128", 0}};
  return known.count(word) != 0;
}

// ---- Statements ----------------------------------------------------------------------------------

class Decoder {
 public:
  Decoder(const Function& function, const Module& module, const Variables& variables)
      : function_(function), module_(module), variables_(variables), kernel_(new Kernel) {}

  std::unique_ptr<Kernel> run() {
    head();
    place();
    for (const Statement& statement : function_.statements) {
      statement_ = &statement;
      Ins ins;
      ins.line = statement.line;
      ins.used = statement.used_bytes;
      decode(ins);
      if (statement.guard >= 0) {
        ins.guard = static_cast<std::int32_t>(offset_[statement.guard]);
        ins.guard_negated = statement.guard_negated;
      }
      kernel_->code.push_back(ins);
      kernel_->text.push_back(statement.text);
    }
    finish();
    return std::move(kernel_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why = "unknown instruction") const {
    throw Unsupported(why + ": \"" + statement_->text + "\", line " +
                      std::to_string(statement_->line) + " of the PTX, in " + kernel_->name);
  }

  void head() {
    int status = 0;
    char* name = abi::__cxa_demangle(function_.name.c_str(), nullptr, nullptr, &status);
    kernel_->name = status == 0 ? name : function_.name;
    std::free(name);
    const auto align = [](std::size_t offset, unsigned alignment) {
      return (offset + alignment - 1) / alignment * alignment;
    };
    for (const Variable& param : function_.params) {
      const std::size_t offset = align(kernel_->param_bytes, param.align);
      kernel_->params.push_back({offset, param.bytes});
      symbols_[param.name] = {Space::kParam, offset};
      kernel_->param_bytes = offset + param.bytes;
    }
    if (kernel_->param_bytes > 32764) throw Unsupported("more than 32,764 bytes of parameters");
    for (const std::vector<Variable>* list : {&module_.shared, &function_.shared}) {
      for (const Variable& variable : *list) {
        if (variable.is_extern) continue;
        const std::size_t offset = align(kernel_->shared_bytes, variable.align);
        symbols_[variable.name] = {Space::kShared, offset};
        kernel_->shared_bytes = offset + variable.bytes;
      }
    }
    for (const std::vector<Variable>* list : {&module_.shared, &function_.shared})
      for (const Variable& variable : *list)
        if (variable.is_extern) {
          kernel_->shared_bytes = align(kernel_->shared_bytes, variable.align);
          symbols_[variable.name] = {Space::kShared, kernel_->shared_bytes};
        }
    for (const Variable& variable : function_.local) {
      const std::size_t offset = align(kernel_->local_bytes, variable.align);
      symbols_[variable.name] = {Space::kLocal, offset};
      kernel_->local_bytes = offset + variable.bytes;
    }
    kernel_->local_bytes = align(kernel_->local_bytes, 16);
    for (const auto& [name, address] : variables_)
      if (symbols_.count(name) == 0) symbols_[name] = {Space::kGlobal, address};
    kernel_->max_threads = function_.max_threads;
    kernel_->min_blocks = function_.min_blocks;
    std::copy(function_.required, function_.required + 3, kernel_->required);
  }

  static void registers_in(const Operand& operand, std::vector<int>& list) {
    if (operand.reg >= 0) list.push_back(operand.reg);
    if (operand.reg2 >= 0) list.push_back(operand.reg2);
    for (const Operand& part : operand.parts) registers_in(part, list);
  }
  /// Whether the first operand is what a statement writes.
  static bool writes_first(const Statement& statement) {
    const std::string& op = statement.op[0];
    if (op == "st" || op == "red" || op == "bra" || op == "brx" || op == "prefetch" ||
        op == "prefetchu" || op == "membar" || op == "fence" || op == "nanosleep" || op == "cp" ||
        op == "discard" || op == "exit" || op == "ret" || op == "trap")
      return false;
    if (op == "bar" || op == "barrier") return statement.op.size() > 1 && has(statement.op, "red");
    return true;
  }
  static bool has(const Op& op, const char* part) {
    return std::find(op.begin(), op.end(), part) != op.end();
  }

  void place() {
    std::vector<std::vector<int>> reads(function_.statements.size()), writes(reads);
    for (std::size_t i = 0; i < reads.size(); ++i) {
      const Statement& statement = function_.statements[i];
      const bool first = writes_first(statement);
      for (std::size_t k = 0; k < statement.operands.size(); ++k)
        registers_in(statement.operands[k], k == 0 && first ? writes[i] : reads[i]);
      if (statement.guard >= 0) {
        reads[i].push_back(statement.guard);
        // What a guarded statement does not write stays.
        for (int reg : writes[i]) reads[i].push_back(reg);
      }
    }
    offset_ = place_registers(function_, reads, writes, kernel_->register_bytes);
    kernel_->live_bytes = static_cast<unsigned>(kernel_->register_bytes / kLanes);
  }

  std::uint32_t add_bytes(std::size_t bytes) {
    const std::size_t offset = (kernel_->register_bytes + 63) / 64 * 64;
    kernel_->register_bytes = offset + bytes;
    return static_cast<std::uint32_t>(offset);
  }
  std::uint32_t constant(std::uint64_t bits, unsigned bytes) {
    if (bytes != 0 && bytes < 8) bits &= (std::uint64_t{1} << (8 * bytes)) - 1;
    const auto key = std::make_pair(bits, bytes);
    auto known = constants_.find(key);
    if (known != constants_.end()) return known->second;
    const std::uint32_t offset = add_bytes(bytes == 0 ? 4 : bytes * kLanes);
    kernel_->constants.push_back({offset, static_cast<std::uint8_t>(bytes), bits});
    return constants_[key] = offset;
  }
  std::uint32_t special(const std::string& name, unsigned bytes) {
    static const std::unordered_map<std::string, Special> known = {
        {"%tid.x", Special::kTidX}, {"%tid.y", Special::kTidY}, {"%tid.z", Special::kTidZ},
        {"%ntid.x", Special::kNtidX}, {"%ntid.y", Special::kNtidY}, {"%ntid.z", Special::kNtidZ},
        {"%ctaid.x", Special::kCtaidX}, {"%ctaid.y", Special::kCtaidY},
        {"%ctaid.z", Special::kCtaidZ}, {"%nctaid.x", Special::kNctaidX},
        {"%nctaid.y", Special::kNctaidY}, {"%nctaid.z", Special::kNctaidZ},
        {"%laneid", Special::kLaneid}, {"%warpid", Special::kWarpid},
        {"%nwarpid", Special::kNwarpid}, {"%smid", Special::kSmid}, {"%nsmid", Special::kNsmid},
        {"%gridid", Special::kGridid}, {"%lanemask_eq", Special::kMaskEq},
        {"%lanemask_le", Special::kMaskLe}, {"%lanemask_lt", Special::kMaskLt},
        {"%lanemask_ge", Special::kMaskGe}, {"%lanemask_gt", Special::kMaskGt},
        {"%dynamic_smem_size", Special::kDynamicShared},
        {"%total_smem_size", Special::kTotalShared}};
    if (name == "WARP_SZ") return constant(32, bytes);
    auto found = known.find(name);
    if (found == known.end()) refuse("unknown register " + name);
    const auto key = std::make_pair(name, bytes);
    auto slot = specials_.find(key);
    if (slot != specials_.end()) return slot->second;
    const std::uint32_t offset = add_bytes(bytes * kLanes);
    kernel_->specials.push_back({offset, static_cast<std::uint8_t>(bytes), found->second});
    return specials_[key] = offset;
  }

  const std::vector<Operand>& operands() const { return statement_->operands; }
  const Operand& operand(std::size_t i) const {
    if (i >= operands().size()) refuse("too few operands");
    return operands()[i];
  }
  unsigned register_bytes(const Operand& operand) const {
    if (operand.kind != Operand::kReg) refuse("register expected");
    return function_.registers[operand.reg].bytes;
  }
  struct Place {
    Space space;
    std::uint64_t value;
  };
  const Place& symbol(const Operand& operand) const {
    auto found = symbols_.find(operand.name);
    if (found == symbols_.end() && !operand.parts.empty())
      found = symbols_.find(operand.parts[0].name);
    if (found == symbols_.end()) refuse("unknown name " + operand.name);
    return found->second;
  }
  /// Where an input of `bytes` lies. 0: predicate.
  std::uint32_t in(std::size_t i, unsigned bytes) { return in(operand(i), bytes); }
  std::uint32_t in(const Operand& operand, unsigned bytes) {
    switch (operand.kind) {
      case Operand::kReg:
        if (function_.registers[operand.reg].bytes != bytes)
          refuse("a register of " + std::to_string(function_.registers[operand.reg].bytes) +
                 " bytes, " + std::to_string(bytes) + " expected");
        return offset_[operand.reg];
      case Operand::kImm: return constant(operand.imm, bytes);
      case Operand::kSymbol: return constant(symbol(operand).value + operand.imm, bytes);
      case Operand::kSpecial: return special(operand.name, bytes);
      default: refuse("operand");
    }
  }
  std::uint32_t out(std::size_t i, unsigned bytes) {
    const Operand& to = operand(i);
    if (to.kind == Operand::kSink) return ~0u;
    if (to.kind != Operand::kReg || function_.registers[to.reg].bytes != bytes)
      refuse("a register of " + std::to_string(bytes) + " bytes expected");
    return offset_[to.reg];
  }
  std::uint32_t label(std::size_t i) { return label_of(operand(i).name); }
  std::uint32_t label_of(const std::string& name) {
    auto found = function_.labels.find(name);
    if (found == function_.labels.end()) refuse("unknown label " + name);
    return found->second;
  }

  /// The last part of an opcode that is a type.
  static std::string type_of(const Op& op) {
    for (auto part = op.rbegin(); part != op.rend(); ++part)
      if (is_type(*part)) return *part;
    return "";
  }

  Ins* now_ = nullptr;

  void three(Ins& ins, Fn fn, unsigned bytes, std::size_t inputs) {
    if (fn == nullptr) refuse();
    ins.fn = fn;
    ins.d = out(0, bytes);
    ins.a = in(1, bytes);
    if (inputs > 1) ins.b = in(2, bytes);
    if (inputs > 2) ins.c = in(3, bytes);
  }

  template <class F>
  Fn floating_two(const Op& op, const std::string& type) {
    const bool sat = has(op, "sat"), ftz = has(op, "ftz");
    check_rounding(op);
    if (type == "f64") return binary<double, double, double, F>;
    if (sat && ftz) return binary<float, float, float, Flushed<Saturated<F>>>;
    if (sat) return binary<float, float, float, Saturated<F>>;
    if (ftz) return binary<float, float, float, Flushed<F>>;
    return binary<float, float, float, F>;
  }
  template <class F>
  Fn floating_one(const Op& op, const std::string& type) {
    check_rounding(op);
    if (type == "f64") {
      if constexpr (requires(double x) { { F::f(x) } -> std::same_as<double>; })
        return unary<double, double, F>;
      refuse();
    }
    return has(op, "ftz") ? unary<float, float, Flushed<F>> : unary<float, float, F>;
  }
  void check_rounding(const Op& op) {
    for (const char* other : {"rz", "rm", "rp"})
      if (has(op, other)) refuse("a rounding that is not done here");
  }
  template <class F>
  bool halves(Ins& ins, const std::string& type) {
    if (type != "f16" && type != "bf16" && type != "f16x2" && type != "bf16x2") return false;
    three(ins,
          type == "f16"     ? Halves<F16>::two<F>
          : type == "bf16"  ? Halves<Bf16>::two<F>
          : type == "f16x2" ? Halves<F16>::two_pairs<F>
                            : Halves<Bf16>::two_pairs<F>,
          bytes_of_type(type), 2);
    return true;
  }

  void decode(Ins& ins) {
    const Op& op = statement_->op;
    const std::string& name = op[0];
    const std::string type = type_of(op);
    const unsigned bytes = bytes_of_type(type);
    const bool is_float = !type.empty() && type[0] == 'f' && (type == "f32" || type == "f64");

    if (name == "add" || name == "sub") {
      if (has(op, "cc")) refuse();
      if (halves_of(name, ins, type)) return;
      if (is_float)
        return three(ins, name == "add" ? floating_two<Add>(op, type) : floating_two<Sub>(op, type),
                     bytes, 2);
      if (has(op, "sat")) refuse();
      return three(ins, name == "add" ? by_integer<Binary<Add>>(type) : by_integer<Binary<Sub>>(type),
                   bytes, 2);
    }
    if (name == "mul") {
      if (halves_of(name, ins, type)) return;
      if (is_float) return three(ins, floating_two<Mul>(op, type), bytes, 2);
      if (has(op, "wide")) {
        ins.fn = by_integer<WideMul>(type);
        if (ins.fn == nullptr) refuse();
        ins.d = out(0, 2 * bytes);
        ins.a = in(1, bytes);
        ins.b = in(2, bytes);
        return;
      }
      return three(ins, has(op, "hi") ? by_integer<Binary<MulHigh>>(type) : by_integer<Binary<Mul>>(type),
                   bytes, 2);
    }
    if (name == "mad" && !is_float) {
      if (has(op, "wide")) {
        ins.fn = by_integer<WideMad>(type);
        if (ins.fn == nullptr) refuse();
        ins.d = out(0, 2 * bytes);
        ins.a = in(1, bytes);
        ins.b = in(2, bytes);
        ins.c = in(3, 2 * bytes);
        return;
      }
      if (has(op, "sat") || has(op, "cc")) refuse();
      return three(ins, has(op, "hi") ? by_integer<Ternary<MadHigh>>(type) : by_integer<Ternary<Mad>>(type),
                   bytes, 3);
    }
    if (name == "fma" || name == "mad") {
      check_rounding(op);
      if (type == "f64") return three(ins, ternary<double, double, double, double, Fma>, bytes, 3);
      if (type != "f32") refuse();
      Fn fn = ternary<float, float, float, float, Fma>;
      if (has(op, "ftz")) fn = ternary<float, float, float, float, Flushed<Fma>>;
      if (has(op, "sat")) fn = ternary<float, float, float, float, Saturated<Fma>>;
      return three(ins, fn, bytes, 3);
    }
    if (name == "div") {
      if (is_float) return three(ins, floating_two<Div>(op, type), bytes, 2);
      return three(ins, by_integer<Binary<Div>>(type), bytes, 2);
    }
    if (name == "rem") return three(ins, by_integer<Binary<Rem>>(type), bytes, 2);
    if (name == "neg") {
      if (is_float) return three(ins, floating_one<Neg>(op, type), bytes, 1);
      return three(ins, by_integer<Unary<Neg>>(type), bytes, 1);
    }
    if (name == "abs") {
      if (is_float) return three(ins, floating_one<Abs>(op, type), bytes, 1);
      return three(ins, by_integer<Unary<Abs>>(type), bytes, 1);
    }
    if (name == "min" || name == "max") {
      if (halves_of(name, ins, type)) return;
      if (has(op, "NaN") || has(op, "xorsign") || has(op, "relu") || operands().size() != 3) refuse();
      if (is_float)
        return three(ins, name == "min" ? floating_two<Min>(op, type) : floating_two<Max>(op, type),
                     bytes, 2);
      return three(ins, name == "min" ? by_integer<Binary<Min>>(type) : by_integer<Binary<Max>>(type),
                   bytes, 2);
    }
    if (name == "sqrt") return three(ins, floating_one<Sqrt>(op, type), bytes, 1);
    if (name == "rcp") return three(ins, floating_one<Rcp>(op, type), bytes, 1);
    if (name == "rsqrt") return three(ins, floating_one<Rsqrt>(op, type), bytes, 1);
    if (name == "ex2" && type == "f32") return three(ins, floating_one<Exp2>(op, type), bytes, 1);
    if (name == "lg2") return three(ins, floating_one<Log2>(op, type), bytes, 1);
    if (name == "sin") return three(ins, floating_one<Sin>(op, type), bytes, 1);
    if (name == "cos") return three(ins, floating_one<Cos>(op, type), bytes, 1);
    if (name == "tanh" && type == "f32") return three(ins, floating_one<Tanh>(op, type), bytes, 1);
    if (name == "copysign")
      return three(ins, type == "f32" ? binary<float, float, float, CopySign> : binary<double, double, double, CopySign>, bytes, 2);
    if (name == "and" || name == "or" || name == "xor") {
      if (type == "pred") {
        ins.fn = name == "and" ? predicates<And> : name == "or" ? predicates<Or> : predicates<Xor>;
        ins.d = out(0, 0);
        ins.a = in(1, 0);
        ins.b = in(2, 0);
        return;
      }
      return three(ins,
                   name == "and"  ? by_integer<Binary<And>>(type)
                   : name == "or" ? by_integer<Binary<Or>>(type)
                                  : by_integer<Binary<Xor>>(type),
                   bytes, 2);
    }
    if (name == "not") {
      if (type == "pred") {
        ins.fn = predicate<Not>;
        ins.d = out(0, 0);
        ins.a = in(1, 0);
        return;
      }
      return three(ins, by_integer<Unary<Not>>(type), bytes, 1);
    }
    if (name == "shl" || name == "shr") {
      ins.fn = name == "shl" ? by_integer<Shifts<Shl>>(type) : by_integer<Shifts<Shr>>(type);
      ins.d = out(0, bytes);
      ins.a = in(1, bytes);
      ins.b = in(2, 4);
      return;
    }
    if (name == "shf") {
      const bool left = has(op, "l"), wrap = has(op, "wrap");
      return three(ins,
                   left ? (wrap ? ternary<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, Funnel<true, true>>
                                : ternary<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, Funnel<true, false>>)
                        : (wrap ? ternary<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, Funnel<false, true>>
                                : ternary<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, Funnel<false, false>>),
                   4, 3);
    }
    if (name == "popc" || name == "clz") {
      if (type != "b32" && type != "b64") refuse();
      if (name == "popc")
        ins.fn = bytes == 4 ? unary<std::uint32_t, std::uint32_t, Popc> : unary<std::uint32_t, std::uint64_t, Popc>;
      else
        ins.fn = bytes == 4 ? unary<std::uint32_t, std::uint32_t, Clz> : unary<std::uint32_t, std::uint64_t, Clz>;
      ins.d = out(0, 4);
      ins.a = in(1, bytes);
      return;
    }
    if (name == "bfind") {
      ins.fn = has(op, "shiftamt") ? by_integer<ToU32<Bfind<true>>>(type) : by_integer<ToU32<Bfind<false>>>(type);
      ins.d = out(0, 4);
      ins.a = in(1, bytes);
      return;
    }
    if (name == "brev")
      return three(ins, bytes == 4 ? unary<std::uint32_t, std::uint32_t, Brev> : unary<std::uint64_t, std::uint64_t, Brev>, bytes, 1);
    if (name == "bfe") {
      ins.fn = by_integer<Fields>(type);
      ins.d = out(0, bytes);
      ins.a = in(1, bytes);
      ins.b = in(2, 4);
      ins.c = in(3, 4);
      return;
    }
    if (name == "bfi") {
      ins.fn = bytes == 4 ? bfi<std::uint32_t> : bfi<std::uint64_t>;
      ins.d = out(0, bytes);
      ins.a = in(1, bytes);
      ins.b = in(2, bytes);
      ins.c = in(3, 4);
      ins.e = in(4, 4);
      return;
    }
    if (name == "lop3") {
      if (op.size() != 2) refuse();
      ins.how = static_cast<std::uint8_t>(operand(4).imm);
      return three(ins, lop3, 4, 3);
    }
    if (name == "prmt") {
      if (op.size() != 2) refuse();
      return three(ins, ternary<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, Prmt>, 4, 3);
    }
    if (name == "dp4a") {
      using U = std::uint32_t;
      const bool a = op[1] == "s32", b = op[2] == "s32";
      return three(ins, a ? (b ? ternary<U, U, U, U, Dp4a<true, true>> : ternary<U, U, U, U, Dp4a<true, false>>)
                          : (b ? ternary<U, U, U, U, Dp4a<false, true>> : ternary<U, U, U, U, Dp4a<false, false>>), 4, 3);
    }
    if (name == "sad") return three(ins, by_integer<Ternary<Sad>>(type), bytes, 3);
    if (name == "setp" || name == "set") return decode_compare(ins);
    if (name == "selp") {
      ins.fn = bytes == 2 ? selp<std::uint16_t> : bytes == 4 ? selp<std::uint32_t> : selp<std::uint64_t>;
      ins.d = out(0, bytes);
      ins.a = in(1, bytes);
      ins.b = in(2, bytes);
      ins.c = in(3, 0);
      ins.how = operand(3).negated;
      return;
    }
    if (name == "testp") {
      static const char* const kinds[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"};
      for (std::uint8_t i = 0; i < 6; ++i)
        if (op[1] == kinds[i]) ins.how = i;
      ins.fn = type == "f32" ? testp<float> : testp<double>;
      ins.d = out(0, 0);
      ins.a = in(1, bytes);
      return;
    }
    if (name == "mov") return decode_mov(ins, type, bytes);
    if (name == "cvt") return decode_cvt(ins);
    if (name == "cvta") return decode_cvta(ins);
    if (name == "isspacep") {
      ins.fn = isspacep;
      ins.imm = static_cast<std::int64_t>(window_of(op));
      ins.d = out(0, 0);
      ins.a = in(1, 8);
      return;
    }
    if (name == "ld" || name == "ldu" || name == "st") return decode_access(ins, type);
    if (name == "atom" || name == "red") return decode_atomic(ins, type, bytes);
    if (name == "membar" || name == "fence") {
      ins.fn = fence;
      return;
    }
    if (name == "prefetch" || name == "prefetchu" || name == "discard" || name == "applypriority" ||
        name == "griddepcontrol") {
      ins.fn = nothing;
      return;
    }
    if (name == "nanosleep") {
      ins.fn = nothing;
      ins.kind = Kind::kPause;
      return;
    }
    if (name == "trap" || name == "brkpt") {
      ins.fn = trap;
      return;
    }
    if (name == "bra") {
      ins.kind = Kind::kBranch;
      ins.target = label(0);
      return;
    }
    if (name == "brx") {
      ins.kind = Kind::kTable;
      ins.a = in(0, 4);
      auto table = function_.tables.find(operand(1).name);
      if (table == function_.tables.end()) refuse("unknown table");
      std::vector<std::uint32_t> targets;
      for (const std::string& target : table->second) targets.push_back(label_of(target));
      kernel_->tables.push_back(std::move(targets));
      ins.imm = static_cast<std::int64_t>(kernel_->tables.size() - 1);
      return;
    }
    if (name == "ret" || name == "exit") {
      ins.kind = Kind::kExit;
      return;
    }
    if (name == "bar" || name == "barrier") return decode_barrier(ins);
    if (name == "shfl" || name == "vote" || name == "match" || name == "redux" || name == "elect" ||
        name == "activemask")
      return decode_warp(ins, type, bytes);
    refuse();
  }

  bool halves_of(const std::string& name, Ins& ins, const std::string& type) {
    if (name == "add") return halves<Add>(ins, type);
    if (name == "sub") return halves<Sub>(ins, type);
    if (name == "mul") return halves<Mul>(ins, type);
    if (name == "min") return halves<Min>(ins, type);
    return halves<Max>(ins, type);
  }

  /// setp.lt.and.f32 p|q, a, b, !c
  void decode_compare(Ins& ins) {
    const Op& op = statement_->op;
    const std::string type = op.back();
    Compare how;
    if (!compare_of(op[1], type[0] == 'f', how)) refuse();
    if (has(op, "ftz")) refuse();
    if (op[0] == "setp") {
      ins.fn = comparing<Comparing<SetpFn>>(type, how);
      if (ins.fn == nullptr) refuse();
      ins.d = operand(0).kind == Operand::kSink ? ~0u : out(0, 0);
      if (operand(0).reg2 >= 0) {
        ins.has_d2 = true;
        ins.d2 = offset_[operand(0).reg2];
      }
      if (operands().size() > 3) {
        ins.how = has(op, "and") ? 1 : has(op, "or") ? 2 : 3;
        if (operand(3).negated) ins.how |= 4;
        ins.c = in(3, 0);
      }
    } else {
      if (operands().size() > 3) refuse();
      const std::string& result = op[op.size() - 2];
      if (bytes_of_type(result) != 4) refuse();
      ins.how = result == "f32";
      ins.fn = comparing<Comparing<SetFn>>(type, how);
      if (ins.fn == nullptr) refuse();
      ins.d = out(0, 4);
    }
    ins.a = in(1, bytes_of_type(type));
    ins.b = in(2, bytes_of_type(type));
  }

  void decode_mov(Ins& ins, const std::string& type, unsigned bytes) {
    if (type == "pred") {
      ins.fn = predicate<Same>;
      ins.d = out(0, 0);
      ins.a = in(1, 0);
      return;
    }
    const auto vector = [&](const Operand& list) {
      for (std::size_t i = 0; i < list.parts.size(); ++i)
        ins.v[i] = list.parts[i].kind == Operand::kSink ? ~0u : in(list.parts[i], bytes / list.parts.size());
      return bytes / list.parts.size();
    };
    using U8 = std::uint8_t;
    using U16 = std::uint16_t;
    using U32 = std::uint32_t;
    using U64 = std::uint64_t;
    if (operand(0).kind == Operand::kVec) {
      const std::size_t part = vector(operand(0));
      ins.a = in(1, bytes);
      ins.fn = bytes == 8 && part == 4   ? parts<U64, U32, true>
               : bytes == 8 && part == 2 ? parts<U64, U16, true>
               : bytes == 4 && part == 2 ? parts<U32, U16, true>
                                         : nullptr;
      if (ins.fn == nullptr) refuse();
      return;
    }
    if (operand(1).kind == Operand::kVec) {
      const std::size_t part = vector(operand(1));
      ins.d = out(0, bytes);
      ins.fn = bytes == 8 && part == 4   ? parts<U64, U32, false>
               : bytes == 8 && part == 2 ? parts<U64, U16, false>
               : bytes == 4 && part == 2 ? parts<U32, U16, false>
                                         : nullptr;
      if (ins.fn == nullptr) refuse();
      return;
    }
    if (operand(1).kind == Operand::kSpecial) {
      const std::string& name = operand(1).name;
      if (name == "%clock" || name == "%clock64" || name == "%globaltimer") {
        ins.fn = bytes == 4 ? clock32 : clock64;
        ins.d = out(0, bytes);
        return;
      }
    }
    ins.fn = bytes == 2 ? unary<U16, U16, Same> : bytes == 4 ? unary<U32, U32, Same> : unary<U64, U64, Same>;
    if (bytes != 2 && bytes != 4 && bytes != 8) refuse();
    (void)sizeof(U8);
    ins.d = out(0, bytes);
    ins.a = in(1, bytes);
  }

  void decode_cvt(Ins& ins) {
    const Op& op = statement_->op;
    const std::string &to = op[op.size() - 2], &from = op[op.size() - 1];
    static const std::unordered_map<std::string, Round> rounds = {
        {"rn", kRn}, {"rz", kRz}, {"rm", kRm}, {"rp", kRp}, {"rni", kRni},
        {"rzi", kRzi}, {"rmi", kRmi}, {"rpi", kRpi}};
    unsigned how = 0;
    for (std::size_t i = 1; i + 2 < op.size(); ++i) {
      auto round = rounds.find(op[i]);
      if (round != rounds.end())
        how |= round->second;
      else if (op[i] == "sat")
        how |= kSat;
      else if (op[i] == "ftz")
        how |= kFtz;
      else
        refuse();
    }
    const bool to_float = to[0] == 'f' || to[0] == 'b', from_float = from[0] == 'f' || from[0] == 'b';
    const unsigned round = how & 15;
    ins.how = static_cast<std::uint8_t>(how);
    if (to == "f16x2" || to == "bf16x2") {
      if (round != kRn || (how & kSat) != 0) refuse();
      ins.fn = to == "f16x2" ? cvt_pair<F16> : cvt_pair<Bf16>;
      ins.d = out(0, 4);
      ins.a = in(1, 4);
      ins.b = in(2, 4);
      return;
    }
    const unsigned source_bytes =
        operand(1).kind == Operand::kReg ? register_bytes(operand(1)) : bytes_of_type(from);
    if (from_float && source_bytes != bytes_of_type(from)) refuse();
    ins.a = in(1, source_bytes);
    const unsigned target_bytes = register_bytes(operand(0));
    if (to_float && target_bytes != bytes_of_type(to)) refuse();
    ins.d = out(0, target_bytes);
    if (!to_float) {
      if (!from_float) ins.how = (how & kSat) != 0;
      if (from_float && round < kRni) refuse("a rounding to integers is missing");
      ins.fn = to == "u8"    ? integer_to<std::uint8_t>(target_bytes, from, source_bytes)
               : to == "s8"  ? integer_to<std::int8_t>(target_bytes, from, source_bytes)
               : to == "u16" ? integer_to<std::uint16_t>(target_bytes, from, source_bytes)
               : to == "s16" ? integer_to<std::int16_t>(target_bytes, from, source_bytes)
               : to == "u32" ? integer_to<std::uint32_t>(target_bytes, from, source_bytes)
               : to == "s32" ? integer_to<std::int32_t>(target_bytes, from, source_bytes)
               : to == "u64" ? integer_to<std::uint64_t>(target_bytes, from, source_bytes)
               : to == "s64" ? integer_to<std::int64_t>(target_bytes, from, source_bytes)
                             : nullptr;
    } else {
      const bool widens = from_float && bytes_of_type(to) > bytes_of_type(from);
      if ((round == kRz && from == "f32" && (to == "bf16" || to == "f16")) && (how & ~15u) == 0) {
        ins.fn = to == "bf16" ? cvt_cut<Bf16> : cvt_cut<F16>;
        return;
      }
      if (!widens && round != kRn && round < kRni && !(to == from)) refuse("a rounding that is not done here");
      ins.fn = to == "f32"    ? float_from<float>(from, source_bytes)
               : to == "f64"  ? float_from<double>(from, source_bytes)
               : to == "f16"  ? float_from<F16>(from, source_bytes)
               : to == "bf16" ? float_from<Bf16>(from, source_bytes)
                              : nullptr;
    }
    if (ins.fn == nullptr) refuse();
  }

  static std::uint64_t window_of(const Op& op) {
    for (const std::string& part : op) {
      if (part.rfind("shared", 0) == 0) return kSharedWindow;
      if (part == "local") return kLocalWindow;
      if (part.rfind("param", 0) == 0) return kParamWindow;
    }
    return 0;
  }
  void decode_cvta(Ins& ins) {
    const Op& op = statement_->op;
    std::uint64_t window = window_of(op);
    if (has(op, "to")) window = 0 - window;
    ins.imm = static_cast<std::int64_t>(window);
    if (op.back() == "u32") {
      ins.fn = to_generic<std::uint32_t, std::uint32_t>;
      ins.d = out(0, 4);
      ins.a = in(1, 4);
      return;
    }
    ins.fn = to_generic<std::uint64_t, std::uint64_t>;
    ins.d = out(0, 8);
    ins.a = in(1, 8);
  }

  Space space_of(const Op& op, const Operand& address) const {
    for (const std::string& part : op) {
      if (part == "global" || part == "const") return Space::kGlobal;
      if (part.rfind("shared", 0) == 0) {
        if (part == "shared::cluster") refuse();
        return Space::kShared;
      }
      if (part == "local") return Space::kLocal;
      if (part.rfind("param", 0) == 0) return Space::kParam;
    }
    if (address.kind == Operand::kMem && !address.name.empty()) return symbol(address).space;
    return Space::kGeneric;
  }
  void address(Ins& ins, const Operand& at) {
    if (at.kind != Operand::kMem) refuse("address expected");
    if (!at.name.empty()) {
      ins.a = constant(symbol(at).value, 8);
      ins.imm = static_cast<std::int64_t>(at.imm);
    } else if (at.reg < 0) {
      ins.a = constant(at.imm, 8);
    } else {
      ins.narrow = function_.registers[at.reg].bytes == 4;
      ins.a = offset_[at.reg];
      ins.imm = static_cast<std::int64_t>(at.imm);
    }
  }
  void decode_access(Ins& ins, const std::string& type) {
    const Op& op = statement_->op;
    const bool is_store = op[0] == "st";
    for (const std::string& part : op)
      if (part == "async" || part == "bulk" || part == "L2::cache_hint") refuse();
    const Operand& memory = operand(is_store ? 0 : 1);
    const Operand& value = operand(is_store ? 1 : 0);
    address(ins, memory);
    const Space space = space_of(op, memory);
    std::size_t count = has(op, "v2") ? 2 : has(op, "v4") ? 4 : has(op, "v8") ? 8 : 1;
    const std::vector<Operand> single = {value};
    const std::vector<Operand>& list = count == 1 && value.kind != Operand::kVec ? single : value.parts;
    if (list.size() != count) refuse();
    unsigned bytes = bytes_of_type(type);
    for (const Operand& part : list)
      if (part.kind == Operand::kReg) bytes = register_bytes(part);
    if (bytes < 2) bytes = 2;
    for (std::size_t i = 0; i < count; ++i)
      ins.v[i] = list[i].kind == Operand::kSink ? ~0u : in(list[i], bytes);
    ins.count = static_cast<std::uint8_t>(count);
    ins.fn = is_store ? access_of<true>(type, bytes, static_cast<unsigned>(count), space)
                      : access_of<false>(type, bytes, static_cast<unsigned>(count), space);
    if (ins.fn == nullptr) refuse();
  }

  void decode_atomic(Ins& ins, const std::string& type, unsigned bytes) {
    const Op& op = statement_->op;
    const bool returns = op[0] == "atom";
    const std::size_t first = returns ? 1 : 0;
    ins.d = returns ? out(0, bytes) : ~0u;
    address(ins, operand(first));
    ins.b = in(first + 1, bytes);
    std::string what;
    for (const char* known : {"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"})
      if (has(op, known)) what = known;
    if (what == "cas") {
      ins.has_c = true;
      ins.c = in(first + 2, bytes);
    }
    if (has(op, "v2") || has(op, "v4") || has(op, "L2::cache_hint")) refuse();
    switch (space_of(op, operand(first))) {
      case Space::kGlobal: ins.fn = atomic_in<Space::kGlobal>(what, type); break;
      case Space::kShared: ins.fn = atomic_in<Space::kShared>(what, type); break;
      case Space::kGeneric: ins.fn = atomic_in<Space::kGeneric>(what, type); break;
      default: break;
    }
    if (ins.fn == nullptr) refuse();
  }

  /// how: 0 plain, 1 and, 2 or, 3 popc (+4: the predicate is negated).
  void decode_barrier(Ins& ins) {
    const Op& op = statement_->op;
    if (has(op, "warp")) {
      ins.kind = Kind::kWarpSync;
      ins.fn = nothing;
      ins.count = 0;
      ins.e = in(0, 4);
      return;
    }
    if (has(op, "cluster") || has(op, "arrive")) refuse();
    ins.kind = Kind::kBarrier;
    ins.fn = nothing;
    if (has(op, "red")) {
      if (operands().size() != 3 || operand(1).kind != Operand::kImm || operand(1).imm != 0) refuse();
      ins.how = has(op, "and") ? 1 : has(op, "or") ? 2 : 3;
      ins.d = ins.how == 3 ? out(0, 4) : out(0, 0);
      ins.a = in(2, 0);
      if (operand(2).negated) ins.how |= 4;
      return;
    }
    if (operands().size() != 1 || operand(0).kind != Operand::kImm || operand(0).imm != 0)
      refuse("a barrier other than number 0 of all threads");
  }

  void decode_warp(Ins& ins, const std::string& type, unsigned bytes) {
    const Op& op = statement_->op;
    const std::string& name = op[0];
    if (name == "activemask") {
      ins.fn = activemask;
      ins.d = out(0, 4);
      return;
    }
    if (name != "elect" && !has(op, "sync")) refuse();
    ins.kind = Kind::kWarpSync;
    const auto second = [&] {
      if (operand(0).reg2 < 0) return;
      ins.has_d2 = true;
      ins.d2 = offset_[operand(0).reg2];
    };
    if (name == "shfl") {
      ins.fn = shfl;
      ins.how = has(op, "up") ? 0 : has(op, "down") ? 1 : has(op, "bfly") ? 2 : 3;
      ins.d = out(0, 4);
      second();
      ins.a = in(1, 4);
      ins.b = in(2, 4);
      ins.c = in(3, 4);
      ins.e = in(4, 4);
    } else if (name == "vote") {
      ins.fn = vote;
      const bool ballot = has(op, "ballot");
      ins.how = ballot ? 3 : has(op, "all") ? 0 : has(op, "any") ? 1 : 2;
      if (operand(1).negated) ins.how |= 4;
      ins.d = out(0, ballot ? 4 : 0);
      ins.a = in(1, 0);
      ins.e = in(2, 4);
    } else if (name == "match") {
      const bool all = has(op, "all");
      ins.fn = bytes == 4 ? (all ? match<std::uint32_t, true> : match<std::uint32_t, false>)
                          : (all ? match<std::uint64_t, true> : match<std::uint64_t, false>);
      ins.d = out(0, 4);
      second();
      ins.a = in(1, bytes);
      ins.e = in(2, 4);
    } else if (name == "redux") {
      using U = std::uint32_t;
      using S = std::int32_t;
      ins.fn = has(op, "add")   ? redux<U, Add>
               : has(op, "and") ? redux<U, And>
               : has(op, "or")  ? redux<U, Or>
               : has(op, "xor") ? redux<U, Xor>
               : has(op, "min") ? (type == "s32" ? redux<S, Min> : redux<U, Min>)
               : has(op, "max") ? (type == "s32" ? redux<S, Max> : redux<U, Max>)
                                : nullptr;
      if (ins.fn == nullptr || bytes != 4 || type[0] == 'f') refuse();
      ins.d = out(0, 4);
      ins.a = in(1, 4);
      ins.e = in(2, 4);
    } else {
      ins.fn = elect;
      ins.d = operand(0).kind == Operand::kSink ? ~0u : out(0, 4);
      second();
      ins.e = in(1, 4);
    }
  }

  void finish() {
    // Falling off the end is a return.
    Ins end;
    end.kind = Kind::kExit;
    kernel_->code.push_back(end);
    kernel_->text.push_back("the function's end");
    for (const auto& [name, index] : function_.labels) kernel_->code[index].leader = true;
    for (std::size_t i = 0; i + 1 < kernel_->code.size(); ++i) {
      const Kind kind = kernel_->code[i].kind;
      if (kind == Kind::kBranch || kind == Kind::kTable || kind == Kind::kExit)
        kernel_->code[i + 1].leader = true;
    }
    kernel_->register_bytes = (kernel_->register_bytes + 63) / 64 * 64;
    kernel_->registers = static_cast<unsigned>(function_.registers.size());
  }

  const Function& function_;
  const Module& module_;
  const Variables& variables_;
  std::unique_ptr<Kernel> kernel_;
  const Statement* statement_ = nullptr;
  std::vector<std::uint32_t> offset_;
  std::map<std::pair<std::uint64_t, unsigned>, std::uint32_t> constants_;
  std::map<std::pair<std::string, unsigned>, std::uint32_t> specials_;
  std::unordered_map<std::string, Place> symbols_;
};

}  // namespace

std::unique_ptr<Kernel> decode(const Function& function, const Module& module,
                               const Variables& variables) {
  return Decoder(function, module, variables).run();
}

}  // namespace ptx
