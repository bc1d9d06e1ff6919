// atom and red.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/whole.h"
#include "tests/ptx_device/machine/access.h"

namespace ptx {
namespace {

// Functions of the old value, b and c. Each returns the new value.
constexpr auto kExchange = []<class T>(T, T b, T) { return b; };
constexpr auto kCompareAndSwap = []<class T>(T old, T b, T c) { return old == b ? c : old; };
constexpr auto kIncrement = []<class T>(T old, T b, T) { return old >= b ? T{0} : old + 1; };
constexpr auto kDecrement = []<class T>(T old, T b, T) {
  return old == 0 || old > b ? b : old - 1;
};
template <auto F>
constexpr auto kCombine = []<class T>(T old, T b, T) { return F(old, b); };

/// Returns the old value.
template <class T, auto F>
T change(std::uint64_t address, T b, T c) {
  T* place = reinterpret_cast<T*>(address);
  T before, after;
  __atomic_load(place, &before, __ATOMIC_RELAXED);
  do {
    after = F(before, b, c);
  } while (
      !__atomic_compare_exchange(place, &before, &after, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return before;
}

template <class T, auto F, Space kSpace>
void atomic(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  Access access(warp, ins, lanes, sizeof(T), Use::kAtomic);
  resolve<kSpace>(access);
  if (settings().check_reads) check_written(access);
  const T* b = at<T>(warp, ins.b);
  const T* c = ins.has_c ? at<T>(warp, ins.c) : b;
  T* d = ins.d == kNoPlace ? nullptr : at<T>(warp, ins.d);
  const auto turn = static_cast<unsigned>(warp.block->draw() % kLanes);  // the order is undefined
  for (unsigned n = 0; n < kLanes; ++n) {
    const unsigned i = (n + turn) % kLanes;
    if (!contains(lanes, i)) continue;
    const T before = change<T, F>(access.addresses[i], b[i], c[i]);
    if (d != nullptr) d[i] = before;
  }
  if (settings().check_reads) set_written(access);
}

template <class T, auto F>
WarpFunction in_space(Space space) {
  switch (space) {
    case Space::kGlobal:
      return atomic<T, F, Space::kGlobal>;
    case Space::kShared:
      return atomic<T, F, Space::kShared>;
    case Space::kGeneric:
      return atomic<T, F, Space::kGeneric>;
    default:
      return nullptr;
  }
}

/// U and S: the unsigned and the signed integer type.
template <class U, class S>
WarpFunction of_integer(const std::string& name, bool is_signed, Space space) {
  if (name == "add") return in_space<U, kCombine<kAdd>>(space);
  if (name == "and") return in_space<U, kCombine<kAnd>>(space);
  if (name == "or") return in_space<U, kCombine<kOr>>(space);
  if (name == "xor") return in_space<U, kCombine<kXor>>(space);
  if (name == "exch") return in_space<U, kExchange>(space);
  if (name == "cas") return in_space<U, kCompareAndSwap>(space);
  if (name == "min")
    return is_signed ? in_space<S, kCombine<kMin>>(space) : in_space<U, kCombine<kMin>>(space);
  if (name == "max")
    return is_signed ? in_space<S, kCombine<kMax>>(space) : in_space<U, kCombine<kMax>>(space);
  return nullptr;
}

WarpFunction function_of(const std::string& name, const std::string& type, Space space) {
  if (type == "u32" && name == "inc") return in_space<std::uint32_t, kIncrement>(space);
  if (type == "u32" && name == "dec") return in_space<std::uint32_t, kDecrement>(space);
  if (type == "f32" && name == "add") return in_space<float, kCombine<kAdd>>(space);
  if (type == "f64" && name == "add") return in_space<double, kCombine<kAdd>>(space);
  if (type == "b16" && name == "cas") return in_space<std::uint16_t, kCompareAndSwap>(space);
  const bool is_signed = type[0] == 's';
  if (type == "u32" || type == "s32" || type == "b32")
    return of_integer<std::uint32_t, std::int32_t>(name, is_signed, space);
  if (type == "u64" || type == "s64" || type == "b64")
    return of_integer<std::uint64_t, std::int64_t>(name, is_signed, space);
  return nullptr;
}

std::string name_of(const Decoder& decoder) {
  for (const char* known : {"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"})
    if (decoder.has(known)) return known;
  decoder.refuse();
}

/// `address`: the index of the address operand.
void decode_at(Decoder& decoder, Instruction& ins, std::size_t address) {
  decoder.refuse_parts({"v2", "v4", "v8", "L2::cache_hint"});
  const std::string name = name_of(decoder);
  decoder.address(ins, decoder.operand(address));
  ins.b = decoder.in(address + 1, decoder.bytes());
  ins.has_c = name == "cas";
  if (ins.has_c) ins.c = decoder.in(address + 2, decoder.bytes());
  const Space space = decoder.space_of(decoder.operand(address));
  ins.run = decoder.known(function_of(name, decoder.type(), space));
  wrap_atomic(decoder, ins, space);
}

void decode_atom(Decoder& decoder, Instruction& ins) {
  ins.d = decoder.out(0, decoder.bytes());
  decode_at(decoder, ins, 1);
}

void decode_red(Decoder& decoder, Instruction& ins) {
  ins.d = kNoPlace;
  decode_at(decoder, ins, 0);
}

}  // namespace

void add_atomics(Handlers& handlers) {
  handlers["atom"] = decode_atom;
  handlers["red"] = decode_red;
}

}  // namespace ptx
