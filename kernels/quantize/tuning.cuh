// How many blocks of 256 threads of each kernel of quantising formats a multiprocessor holds at
// least. More blocks hide more of the memory's latency; what they cost is registers: 65,536 / (256
// · blocks) a thread. Each is the most with which no format spills (`ctest -L resources`).
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/quantize/noise.cuh"

#include <type_traits>

namespace tersor::kernels {

struct QuantizeResident {
  unsigned from;     // the architecture from which on this holds, as __CUDA_ARCH__ says it
  unsigned plain;    // encode without feedback
  unsigned fed;      // encode with feedback: a second row of each chunk
  unsigned reduced;  // reduce
  unsigned any;      // encode with noise of any element, a counter a value
  unsigned reduced_any;
  unsigned decode;
  unsigned added;  // decode that adds to what is there
};

/// The newest architecture comes last.
constexpr QuantizeResident kQuantizeTuning[] = {
    {.from = 0,
     .plain = 4,
     .fed = 3,
     .reduced = 3,
     .any = 2,
     .reduced_any = 2,
     .decode = 4,
     .added = 3},
    {.from = 1200,
     .plain = 4,
     .fed = 3,
     .reduced = 3,
     .any = 2,
     .reduced_any = 1,
     .decode = 4,
     .added = 3},
};
constexpr QuantizeResident kQuantizeResident = tuning_of(kQuantizeTuning);

template <typename E, NoiseKind kKind>
constexpr unsigned kEncodeResident = kKind == NoiseKind::kAny        ? kQuantizeResident.any
                                     : std::is_same_v<E, NoResidual> ? kQuantizeResident.plain
                                                                     : kQuantizeResident.fed;
template <NoiseKind kKind>
constexpr unsigned kReduceResident =
    kKind == NoiseKind::kAny ? kQuantizeResident.reduced_any : kQuantizeResident.reduced;

}  // namespace tersor::kernels
