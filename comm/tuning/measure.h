// How quick the codecs are on this machine.
#pragma once

#include "comm/tuning/model.h"

#include <string>

namespace tersor {

/// Times a codec's calls on one core, or on the current device, some tens of milliseconds. With
/// "+ef": with a residual.
CodecCosts measure_codec(const std::string& spec, Dtype dtype, Memory memory = Memory::kHost);

/// Seconds in which a native sum adds a byte that came to one that is there.
double measure_adding();

}  // namespace tersor
