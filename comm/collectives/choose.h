// Which way a codec's bytes go, where the caller leaves it open. By rule, not by measurement: the
// measured choice of codec and algorithm builds on this one.
#pragma once

#include "comm/collectives/plan.h"

#include <tersor/codec.h>
#include <tersor/collectives.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// Messages of at most this many bytes go to everybody at once: one round of latency, not two.
inline constexpr std::size_t kOneShotBytes = 16 * 1024;

/// What stands in signatures before a number for how values lie: `order` and, of one of several
/// parameters, which.
inline std::string order_mark() { return std::string("order") + '\0'; }
std::string order_mark(std::uint32_t parameter);

/// What values are called in signatures, by number.
std::vector<std::string> algorithm_names();
inline std::vector<std::string> reduction_names() { return {"sum", "mean"}; }
std::vector<std::string> dtype_names();

/// What a choice depends on.
struct ChoiceRequest {
  const Codec* codec = nullptr;
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  int ranks = 1;
  Algorithm wanted = Algorithm::kAuto;
  bool alone = false;      ///< a gradient by itself: in which order little is summed is left open
  bool any_shape = false;  ///< the gradient has a shape that its codec carries
};

/// What the rounds of a codec go by: the last as `algorithm` (neither kAuto nor kHierarchical), all
/// before it by the exchange that they like best.
std::vector<Exchange> exchanges_of(const Codec& codec, Dtype dtype, int ranks, Algorithm algorithm);

/// The way of a reduce-scatter: kTwoShot, of which only the first half is gone; or kOneShot for a
/// codec that cannot be cut: each rank gathers all and keeps its shard. Throws InvalidArgument for
/// one that sends bare values alone; `operation` is for the message.
Algorithm choose_scatter(const Codec& codec, Dtype dtype, std::string_view operation);

/// Whether an allreduce by `codec` may go so.
bool can_go(const Codec& codec, Dtype dtype, Algorithm algorithm);

/// Whether natively a gradient's own values are added, where they lie.
bool adds_in_place(const Codec& codec, Dtype dtype);

/// Native where the values add on the wire, little f32 ones only if they are alone; one-shot for
/// codecs that cannot reduce, for two ranks (the same bytes, one quantisation) and for small
/// messages; else two-shot. For kHierarchical what goes on between the hosts, of which `ranks` is
/// the number. Throws InvalidArgument where the wanted algorithm does not fit the codec.
Algorithm choose_algorithm(const ChoiceRequest& request);

}  // namespace tersor
