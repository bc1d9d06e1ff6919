// Moves of values and addresses without arithmetic: mov, cvta, clocks.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

#include <algorithm>

namespace ptx {
namespace {

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

template <class T>
void clock(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  put_same(at<T>(warp, ins.d), static_cast<T>(__builtin_ia32_rdtsc()), lanes);
}

/// v: the parts of a wide register a.
template <class W, class P>
void split(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  W whole[kLanes];  // a part may overlap a
  std::copy_n(at<W>(warp, ins.a), kLanes, whole);
  for (unsigned part = 0; part < sizeof(W) / sizeof(P); ++part) {
    if (ins.v[part] == kNoPlace) continue;
    P values[kLanes];
    for (unsigned i = 0; i < kLanes; ++i)
      values[i] = static_cast<P>(whole[i] >> (8 * sizeof(P) * part));
    put(at<P>(warp, ins.v[part]), values, lanes);
  }
}

template <class W, class P>
void unite(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  W values[kLanes] = {};
  for (unsigned part = 0; part < sizeof(W) / sizeof(P); ++part) {
    const P* a = at<P>(warp, ins.v[part]);
    for (unsigned i = 0; i < kLanes; ++i)
      values[i] |= static_cast<W>(static_cast<W>(a[i]) << (8 * sizeof(P) * part));
  }
  put(at<W>(warp, ins.d), values, lanes);
}

/// imm: the added offset, a window or its negative.
template <class T>
void move_to_window(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const T* a = at<T>(warp, ins.a);
  T values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = static_cast<T>(a[i] + static_cast<T>(ins.imm));
  put(at<T>(warp, ins.d), values, lanes);
}

/// imm: the window; 0: global memory.
void isspacep(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const auto* a = at<U64>(warp, ins.a);
  const auto window = static_cast<U64>(ins.imm), bytes = window == 0 ? kSharedWindow : kWindowBytes;
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < kLanes; ++i) bits |= std::uint32_t{a[i] - window < bytes} << i;
  put_predicate(warp, ins.d, bits, lanes);
}

U64 window_of(const Decoder& decoder) {
  for (const std::string& part : decoder.op()) {
    if (part.rfind("shared", 0) == 0) return kSharedWindow;
    if (part == "local") return kLocalWindow;
    if (part.rfind("param", 0) == 0) return kParamWindow;
  }
  return 0;
}

/// Returns the size of each part in bytes.
std::size_t decode_parts(Decoder& decoder, Instruction& ins, const Operand& list) {
  const std::size_t bytes = decoder.bytes() / list.parts.size();
  for (std::size_t i = 0; i < list.parts.size(); ++i)
    ins.v[i] = list.parts[i].kind == Operand::kSink
                   ? kNoPlace
                   : decoder.in(list.parts[i], static_cast<unsigned>(bytes));
  return bytes;
}

/// Calls choose.template operator()<W, P>() for a wide register and its parts.
template <class F>
WarpFunction by_parts(unsigned bytes, std::size_t part, F choose) {
  if (bytes == 8 && part == 4) return choose.template operator()<U64, U32>();
  if (bytes == 8 && part == 2) return choose.template operator()<U64, U16>();
  if (bytes == 4 && part == 2) return choose.template operator()<U32, U16>();
  return nullptr;
}

void decode_split(Decoder& decoder, Instruction& ins) {
  const std::size_t part = decode_parts(decoder, ins, decoder.operand(0));
  const auto choose = []<class W, class P>() { return WarpFunction{split<W, P>}; };
  ins.run = decoder.known(by_parts(decoder.bytes(), part, choose));
  ins.a = decoder.in(1, decoder.bytes());
}

void decode_unite(Decoder& decoder, Instruction& ins) {
  const std::size_t part = decode_parts(decoder, ins, decoder.operand(1));
  const auto choose = []<class W, class P>() { return WarpFunction{unite<W, P>}; };
  ins.run = decoder.known(by_parts(decoder.bytes(), part, choose));
  ins.d = decoder.out(0, decoder.bytes());
}

bool is_clock(const Operand& operand) {
  const std::string& name = operand.name;
  return operand.kind == Operand::kSpecial &&
         (name == "%clock" || name == "%clock64" || name == "%globaltimer");
}

void decode_mov(Decoder& decoder, Instruction& ins) {
  const unsigned bytes = decoder.bytes();
  if (decoder.operand(0).kind == Operand::kVec) return decode_split(decoder, ins);
  if (decoder.operand(1).kind == Operand::kVec) return decode_unite(decoder, ins);
  if (is_clock(decoder.operand(1))) {
    ins.run = bytes == 4 ? clock<U32> : clock<U64>;
    ins.d = decoder.out(0, bytes);
    return;
  }
  WarpFunction function = nullptr;
  if (bytes == 2) function = each_lane<kSame, U16, U16>;
  if (bytes == 4) function = each_lane<kSame, U32, U32>;
  if (bytes == 8) function = each_lane<kSame, U64, U64>;
  decoder.same_bytes(ins, function, 1);
}

void decode_cvta(Decoder& decoder, Instruction& ins) {
  const U64 window = window_of(decoder);
  ins.imm = static_cast<std::int64_t>(decoder.has("to") ? 0 - window : window);
  decoder.same_bytes(ins, decoder.bytes() == 4 ? move_to_window<U32> : move_to_window<U64>, 1);
}

void decode_isspacep(Decoder& decoder, Instruction& ins) {
  ins.run = isspacep;
  ins.imm = static_cast<std::int64_t>(window_of(decoder));
  ins.d = decoder.out(0, 0);
  ins.a = decoder.in(1, 8);
}

}  // namespace

void add_moves(Handlers& handlers) {
  handlers["mov"] = decode_mov;
  handlers["cvta"] = decode_cvta;
  handlers["isspacep"] = decode_isspacep;
}

}  // namespace ptx
