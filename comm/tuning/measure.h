// Measures the speed of the codecs on this machine.
#pragma once

#include "comm/tuning/model.h"

#include <string>

namespace tersor {

/// Measures the calls of a codec on a single core or on the current device. Takes some tens of
/// milliseconds. Codecs with "+ef" use a residual.
CodecCosts measure_codec(const std::string& spec, Dtype dtype, Memory memory = Memory::kHost);

/// Measures the seconds per byte for adding received values in a native sum.
double measure_addition();

}  // namespace tersor
