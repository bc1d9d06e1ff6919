// Shifts, bit fields and bytes.
#include "tests/ptx_device/decode/bits.h"

#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

namespace ptx {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

template <class T>
void bfi(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  constexpr unsigned kBits = 8 * sizeof(T);
  const T *a = at<T>(warp, ins.a), *b = at<T>(warp, ins.b);
  const U32 *c = at<U32>(warp, ins.c), *e = at<U32>(warp, ins.e);
  T values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    const unsigned position = c[i] & 0xff, length = e[i] & 0xff;
    T mask = length >= kBits ? ~T{0} : static_cast<T>((T{1} << length) - 1);
    if (position >= kBits) mask = 0;
    const unsigned shift = position & (kBits - 1);
    values[i] = (b[i] & ~static_cast<T>(mask << shift)) | static_cast<T>((a[i] & mask) << shift);
  }
  put(at<T>(warp, ins.d), values, lanes);
}

/// how: the truth table, with a bit for each row of a, b and c.
void lop3(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const U32 *a = at<U32>(warp, ins.a), *b = at<U32>(warp, ins.b), *c = at<U32>(warp, ins.c);
  U32 values[kLanes] = {};
  for (unsigned row = 0; row < 8; ++row) {
    if (!contains(ins.how, row)) continue;
    const U32 x = (row & 4) != 0 ? 0 : kAll, y = (row & 2) != 0 ? 0 : kAll,
              z = (row & 1) != 0 ? 0 : kAll;
    for (unsigned i = 0; i < kLanes; ++i) values[i] |= (a[i] ^ x) & (b[i] ^ y) & (c[i] ^ z);
  }
  put(at<U32>(warp, ins.d), values, lanes);
}

/// Requires equal selectors in all lanes and no sign replication. imm: the selectors.
void prmt_fixed(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const U32 *a = at<U32>(warp, ins.a), *b = at<U32>(warp, ins.b);
  U32 values[kLanes] = {};
  for (unsigned byte = 0; byte < 4; ++byte) {
    const unsigned pick = static_cast<unsigned>(ins.imm >> (4 * byte)) & 7, shift = 8 * (pick & 3);
    const U32* from = pick < 4 ? a : b;
    for (unsigned i = 0; i < kLanes; ++i) values[i] |= ((from[i] >> shift) & 0xff) << (8 * byte);
  }
  put(at<U32>(warp, ins.d), values, lanes);
}

template <auto F>
void decode_shift(Decoder& decoder, Instruction& ins) {
  const auto choose = []<class T>() { return WarpFunction{each_lane<F, T, T, U32>}; };
  ins.run = decoder.known(by_integer(decoder.type(), choose));
  ins.d = decoder.out(0, decoder.bytes());
  ins.a = decoder.in(1, decoder.bytes());
  ins.b = decoder.in(2, 4);
}

void decode_funnel(Decoder& decoder, Instruction& ins) {
  const bool left = decoder.has("l"), wrap = decoder.has("wrap");
  static constexpr WarpFunction kFunctions[2][2] = {
      {same_type<kFunnel<false, false>, U32, 3>(), same_type<kFunnel<false, true>, U32, 3>()},
      {same_type<kFunnel<true, false>, U32, 3>(), same_type<kFunnel<true, true>, U32, 3>()}};
  decoder.same_bytes(ins, kFunctions[left][wrap], 3);
}

/// The result has 32 bits.
void decode_count(Decoder& decoder, Instruction& ins, WarpFunction function) {
  ins.run = decoder.known(function);
  ins.d = decoder.out(0, 4);
  ins.a = decoder.in(1, decoder.bytes());
}

template <auto F>
void decode_count_bits(Decoder& decoder, Instruction& ins) {
  if (decoder.type() != "b32" && decoder.type() != "b64") decoder.refuse();
  decode_count(decoder, ins,
               decoder.bytes() == 4 ? each_lane<F, U32, U32> : each_lane<F, U32, U64>);
}

void decode_bfind(Decoder& decoder, Instruction& ins) {
  const bool shift = decoder.has("shiftamt");
  decode_count(decoder, ins, by_integer(decoder.type(), [&]<class T>() -> WarpFunction {
                 return shift ? each_lane<kBfind<true>, U32, T> : each_lane<kBfind<false>, U32, T>;
               }));
}

void decode_bmsk(Decoder& decoder, Instruction& ins) {
  const bool clamp = decoder.has("clamp");
  decoder.same_bytes(
      ins, clamp ? each_lane<kBmsk<true>, U32, U32, U32> : each_lane<kBmsk<false>, U32, U32, U32>,
      2);
}

void decode_brev(Decoder& decoder, Instruction& ins) {
  decoder.same_bytes(
      ins, decoder.bytes() == 4 ? each_lane<kBrev, U32, U32> : each_lane<kBrev, U64, U64>, 1);
}

void decode_bfe(Decoder& decoder, Instruction& ins) {
  const auto choose = []<class T>() { return WarpFunction{each_lane<kBfe, T, T, U32, U32>}; };
  ins.run = decoder.known(by_integer(decoder.type(), choose));
  ins.d = decoder.out(0, decoder.bytes());
  ins.a = decoder.in(1, decoder.bytes());
  ins.b = decoder.in(2, 4);
  ins.c = decoder.in(3, 4);
}

void decode_bfi(Decoder& decoder, Instruction& ins) {
  decoder.same_bytes(ins, decoder.bytes() == 4 ? bfi<U32> : bfi<U64>, 2);
  ins.c = decoder.in(3, 4);
  ins.e = decoder.in(4, 4);
}

void decode_lop3(Decoder& decoder, Instruction& ins) {
  if (decoder.op().size() != 2) decoder.refuse();
  ins.how = static_cast<std::uint8_t>(decoder.operand(4).imm);
  decoder.same_bytes(ins, lop3, 3);
}

void decode_prmt(Decoder& decoder, Instruction& ins) {
  if (decoder.op().size() != 2) decoder.refuse();
  const Operand& picks = decoder.operand(3);
  const bool is_fixed = picks.kind == Operand::kImm && (picks.imm & 0x8888) == 0;
  ins.imm = static_cast<std::int64_t>(picks.imm);
  decoder.same_bytes(ins, is_fixed ? prmt_fixed : same_type<kPrmt, U32, 3>(), 3);
}

void decode_dp4a(Decoder& decoder, Instruction& ins) {
  using S = std::int8_t;
  using U = std::uint8_t;
  const bool a = decoder.op()[1] == "s32", b = decoder.op()[2] == "s32";
  static constexpr WarpFunction kFunctions[2][2] = {
      {same_type<kDp4a<U, U>, U32, 3>(), same_type<kDp4a<U, S>, U32, 3>()},
      {same_type<kDp4a<S, U>, U32, 3>(), same_type<kDp4a<S, S>, U32, 3>()}};
  decoder.same_bytes(ins, kFunctions[a][b], 3);
}

}  // namespace

void add_bits(Handlers& handlers) {
  handlers["shl"] = decode_shift<kShl>;
  handlers["shr"] = decode_shift<kShr>;
  handlers["shf"] = decode_funnel;
  handlers["popc"] = decode_count_bits<kPopc>;
  handlers["clz"] = decode_count_bits<kClz>;
  handlers["bfind"] = decode_bfind;
  handlers["bmsk"] = decode_bmsk;
  handlers["brev"] = decode_brev;
  handlers["bfe"] = decode_bfe;
  handlers["bfi"] = decode_bfi;
  handlers["lop3"] = decode_lop3;
  handlers["prmt"] = decode_prmt;
  handlers["dp4a"] = decode_dp4a;
}

}  // namespace ptx
