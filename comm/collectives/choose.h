// Which way a codec's bytes go, where the caller leaves it open. By rule, not by measurement: the
// measured choice of codec and algorithm builds on this one.
#pragma once

#include "comm/collectives/plan.h"

#include <tersor/codec.h>
#include <tersor/collectives.h>

#include <cstddef>

namespace tersor {

/// Messages of at most this many bytes go to everybody at once: one round of latency, not two.
inline constexpr std::size_t kOneShotBytes = 16 * 1024;

/// What a choice depends on.
struct ChoiceRequest {
  const Codec* codec = nullptr;
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  int ranks = 1;
  Algorithm wanted = Algorithm::kAuto;
};

/// Native where the values add on the wire; one-shot for codecs that cannot reduce, for two ranks
/// (the same bytes, one quantisation) and for small messages; else two-shot. For kHierarchical what
/// goes on between the hosts, of which `ranks` is the number.
/// Throws InvalidArgument where the wanted algorithm does not fit the codec.
Algorithm choose_algorithm(const ChoiceRequest& request);

}  // namespace tersor
