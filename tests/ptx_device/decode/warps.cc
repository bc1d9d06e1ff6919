// Warp-wide operations.
#include "tests/ptx_device/decode/arithmetic.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

namespace ptx {
namespace {

using U32 = std::uint32_t;

enum Shuffle : std::uint8_t { kUp, kDown, kButterfly, kIndexed };

/// The source lane of a shuffle; negative if out of range.
template <Shuffle kHow>
inline int source_of(int lane, U32 b, U32 c) {
  const int offset = static_cast<int>(b & 31), clamp = static_cast<int>(c & 31),
            segment = static_cast<int>((c >> 8) & 31);
  const int least = lane & segment, most = least | (clamp & ~segment);
  if constexpr (kHow == kUp) return lane - offset >= most ? lane - offset : -1;
  int from = least | (offset & ~segment);
  if constexpr (kHow == kDown) from = lane + offset;
  if constexpr (kHow == kButterfly) from = lane ^ offset;
  return from <= most ? from : -1;
}

/// A lane without a source in range keeps its own value.
template <Shuffle kHow>
void shfl(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const U32 *a = at<U32>(warp, ins.a), *b = at<U32>(warp, ins.b), *c = at<U32>(warp, ins.c);
  U32 values[kLanes], found = 0, absent = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    const int source = source_of<kHow>(static_cast<int>(i), b[i], c[i]);
    const U32 from = source < 0 ? i : static_cast<U32>(source) & 31;
    values[i] = a[from];
    found |= U32{source >= 0} << i;
    absent |= (~(lanes >> from) & 1) << i;
  }
  absent &= lanes;
  if (absent != 0)
    fault(warp, FaultKind::kInstruction, first_lane(absent),
          "takes the value of a lane that takes no part");
  put(at<U32>(warp, ins.d), values, lanes);
  if (ins.has_d2) put_predicate(warp, ins.d2, found, lanes);
}

enum VoteMode : std::uint8_t { kVoteAll, kVoteAny, kVoteUniform, kBallot, kNegated };

void vote(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const U32 a = (predicate_at(warp, ins.a) ^ ((ins.how & kNegated) != 0 ? kAll : 0)) & lanes;
  const unsigned how = ins.how & 3;
  if (how == kBallot) return put_same(at<U32>(warp, ins.d), a, lanes);
  const bool all = a == lanes, any = a != 0;
  const bool yes = how == kVoteAll ? all : how == kVoteAny ? any : all || !any;
  put_predicate(warp, ins.d, yes ? kAll : 0, lanes);
}

template <class T>
U32 lanes_that_hold(const T* values, T value, std::uint32_t lanes) {
  U32 found = 0;
  for (unsigned i = 0; i < kLanes; ++i) found |= U32{values[i] == value} << i;
  return found & lanes;
}
template <class T>
void match_any(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const T* a = at<T>(warp, ins.a);
  U32 values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) values[i] = lanes_that_hold(a, a[i], lanes);
  put(at<U32>(warp, ins.d), values, lanes);
}
template <class T>
void match_all(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const T* a = at<T>(warp, ins.a);
  const bool same = lanes_that_hold(a, a[first_lane(lanes)], lanes) == lanes;
  if (ins.has_d2) put_predicate(warp, ins.d2, same ? kAll : 0, lanes);
  put_same(at<U32>(warp, ins.d), same ? lanes : 0, lanes);
}

template <class T, auto F>
void redux(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const T* a = at<T>(warp, ins.a);
  T result = a[first_lane(lanes)];
  for (std::uint32_t left = lanes & (lanes - 1); left != 0; left &= left - 1)
    result = F(result, a[first_lane(left)]);
  put_same(at<T>(warp, ins.d), result, lanes);
}

void elect(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  if (ins.d != kNoPlace) put_same(at<U32>(warp, ins.d), U32{first_lane(lanes)}, lanes);
  if (ins.has_d2) put_predicate(warp, ins.d2, 1u << first_lane(lanes), lanes);
}

void activemask(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  put_same(at<U32>(warp, ins.d), lanes, lanes);
}

/// `mask`: the index of the operand with the lanes.
void wait_for(Decoder& decoder, Instruction& ins, std::size_t mask) {
  if (decoder.op()[0] != "elect" && !decoder.has("sync")) decoder.refuse();
  ins.kind = Kind::kWarpSync;
  ins.e = decoder.in(mask, 4);
}

void decode_shfl(Decoder& decoder, Instruction& ins) {
  wait_for(decoder, ins, 4);
  static constexpr WarpFunction kFunctions[] = {shfl<kUp>, shfl<kDown>, shfl<kButterfly>,
                                                shfl<kIndexed>};
  decoder.same_bytes(ins, kFunctions[decoder.which({"up", "down", "bfly"})], 3);
  decoder.second_out(ins);
}

void decode_vote(Decoder& decoder, Instruction& ins) {
  wait_for(decoder, ins, 2);
  ins.run = vote;
  ins.how = decoder.which({"all", "any", "uni"});
  ins.d = decoder.out(0, ins.how == kBallot ? 4 : 0);
  ins.a = decoder.in(1, 0);
  if (decoder.operand(1).negated) ins.how |= kNegated;
}

void decode_match(Decoder& decoder, Instruction& ins) {
  wait_for(decoder, ins, 2);
  const bool is_short = decoder.bytes() == 4;
  if (decoder.has("all"))
    ins.run = is_short ? match_all<U32> : match_all<std::uint64_t>;
  else
    ins.run = is_short ? match_any<U32> : match_any<std::uint64_t>;
  ins.d = decoder.out(0, 4);
  decoder.second_out(ins);
  ins.a = decoder.in(1, decoder.bytes());
}

WarpFunction redux_of(const Decoder& decoder) {
  using S32 = std::int32_t;
  const bool is_signed = decoder.type() == "s32";
  const WarpFunction functions[] = {redux<U32, kAdd>,
                                    redux<U32, kAnd>,
                                    redux<U32, kOr>,
                                    redux<U32, kXor>,
                                    is_signed ? redux<S32, kMin> : redux<U32, kMin>,
                                    is_signed ? redux<S32, kMax> : redux<U32, kMax>,
                                    nullptr};
  return functions[decoder.which({"add", "and", "or", "xor", "min", "max"})];
}

void decode_redux(Decoder& decoder, Instruction& ins) {
  wait_for(decoder, ins, 2);
  if (decoder.bytes() != 4) decoder.refuse();
  decoder.same_bytes(ins, redux_of(decoder), 1);
}

void decode_elect(Decoder& decoder, Instruction& ins) {
  wait_for(decoder, ins, 1);
  ins.run = elect;
  ins.d = decoder.out(0, 4);
  decoder.second_out(ins);
}

void decode_activemask(Decoder& decoder, Instruction& ins) {
  ins.run = activemask;
  ins.d = decoder.out(0, 4);
}

}  // namespace

void add_warps(Handlers& handlers) {
  handlers["shfl"] = decode_shfl;
  handlers["vote"] = decode_vote;
  handlers["match"] = decode_match;
  handlers["redux.integer"] = decode_redux;
  handlers["elect"] = decode_elect;
  handlers["activemask"] = decode_activemask;
}

}  // namespace ptx
