// Chooses the algorithm of a codec by rules if the caller leaves the choice open. The measured
// choice of codec and algorithm builds on these rules.
#pragma once

#include "comm/collectives/plan.h"

#include <tersor/codec.h>
#include <tersor/collectives.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// Messages up to this size are sent to all ranks at once: a single round of latency instead of
/// two.
inline constexpr std::size_t kOneShotBytes = 16 * 1024;

/// The signature prefix of a memory order: `order`, followed by the parameter's index if there are
/// several parameters.
inline std::string order_mark() { return std::string("order") + '\0'; }
std::string order_mark(std::uint32_t parameter);

/// The names of enumerators in signatures, by number.
std::vector<std::string> algorithm_names();
inline std::vector<std::string> reduction_names() { return {"sum", "mean"}; }
std::vector<std::string> dtype_names();

/// The inputs of a choice.
struct ChoiceRequest {
  const Codec* codec = nullptr;
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  int ranks = 1;
  Algorithm requested = Algorithm::kAuto;
  bool single_gradient = false;  ///< True for a single gradient: the order of small sums is free
  bool any_shape = false;        ///< True if the gradient's shape suits the codec
};

/// The exchange of each round of a codec. The last round uses `algorithm` (neither kAuto nor
/// kHierarchical), and the earlier rounds use the codec's preferred exchange.
std::vector<Exchange> exchanges_of(const Codec& codec, Dtype dtype, int ranks, Algorithm algorithm);

/// The algorithm of a reduce-scatter: kTwoShot (first half only), or kOneShot for an indivisible
/// codec: each rank gathers everything and keeps its shard. Throws InvalidArgumentError for a codec
/// with raw values only; `operation` is for the error text.
Algorithm choose_reduce_scatter(const Codec& codec, Dtype dtype, std::string_view operation);

/// True if the codec supports the algorithm in an allreduce.
bool supports(const Codec& codec, Dtype dtype, Algorithm algorithm);

/// True if the native algorithm adds the gradient's own values in place.
bool adds_in_place(const Codec& codec, Dtype dtype);

/// Plans a codec for self-contained frames: a rank can encode, and others decode, without a
/// collective of all ranks. Throws InvalidArgumentError (text starting with `caller`) for a codec
/// with a joint exchange of all ranks.
Plan plan_local(const Codec& codec, std::span<const Segment> segments, std::string_view caller);

/// Chooses native if values can be added during transfer (small f32 inputs only for a single
/// gradient). Chooses one-shot for codecs without reduce, for two ranks (same bytes, one
/// quantization) and for short messages. Otherwise, chooses two-shot. If the algorithm is
/// kHierarchical, chooses the exchange between `ranks` hosts. Throws InvalidArgumentError if the
/// wanted algorithm does not suit the codec.
Algorithm choose_algorithm(const ChoiceRequest& request);

}  // namespace tersor
