// Codecs whose frames say all that there is to say, so that a rank encodes and others decode
// without all ranks taking part: what a parameter server and gossip send.
#pragma once

#include <tersor/codec.h>

#include <span>
#include <string_view>

namespace tersor {

/// Throws InvalidArgument, which begins with `who`, for a codec that all ranks exchange together.
Plan plan_alone(const Codec& codec, std::span<const Segment> segments, std::string_view who);

}  // namespace tersor
