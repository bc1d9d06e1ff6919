// Codecs with self-contained frames. A rank can encode, and others decode, without a collective of
// all ranks. Used by the parameter server and gossip.
#pragma once

#include <tersor/codec.h>

#include <span>
#include <string_view>

namespace tersor {

/// Plans a codec for self-contained frames. Throws InvalidArgument (text starting with `who`) for a
/// codec with a joint exchange of all ranks.
Plan plan_alone(const Codec& codec, std::span<const Segment> segments, std::string_view who);

}  // namespace tersor
