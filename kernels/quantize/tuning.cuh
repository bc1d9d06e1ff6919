// How many blocks of 256 threads of each kernel of quantising formats a multiprocessor holds at
// least. More blocks hide more of the memory's latency; what they cost is registers: 65,536 / (256
// · blocks) a thread. Each is the most with which no format spills (`ctest -L resources`).
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/noise.cuh"

#include <type_traits>

namespace tersor::kernels {

struct QuantizeResident {
  unsigned from;     // the architecture from which on this holds, as __CUDA_ARCH__ says it
  unsigned plain;    // encode without feedback
  unsigned plain16;  // the same of few gradients of 16 bits, to nearest
  unsigned fed;      // encode with feedback: a second row of each chunk
  unsigned reduced;  // reduce
  unsigned any;      // encode with noise of any element, a counter a value
  unsigned reduced_any;
  unsigned decode;
  unsigned decode16;    // of few frames to values of 16 bits
  unsigned added;       // decode that adds to what is there
  unsigned added_many;  // the same of many frames
};

/// The newest architecture comes last. The first is also what others are assembled from.
constexpr QuantizeResident kQuantizeTuning[] = {
    {.from = 0,
     .plain = 4,
     .plain16 = 5,
     .fed = 3,
     .reduced = 3,
     .any = 1,
     .reduced_any = 2,
     .decode = 4,
     .decode16 = 4,
     .added = 4,
     .added_many = 3},
    {.from = 900,
     .plain = 4,
     .plain16 = 5,
     .fed = 3,
     .reduced = 3,
     .any = 2,
     .reduced_any = 2,
     .decode = 4,
     .decode16 = 5,
     .added = 4,
     .added_many = 3},
    {.from = 1000,
     .plain = 4,
     .plain16 = 4,
     .fed = 3,
     .reduced = 3,
     .any = 1,
     .reduced_any = 1,
     .decode = 4,
     .decode16 = 4,
     .added = 4,
     .added_many = 3},
};
constexpr QuantizeResident kQuantizeResident = tuning_of(kQuantizeTuning);

template <typename E, NoiseKind kKind>
constexpr unsigned kEncodeResident = kKind == NoiseKind::kAny        ? kQuantizeResident.any
                                     : std::is_same_v<E, NoResidual> ? kQuantizeResident.plain
                                                                     : kQuantizeResident.fed;
/// Of gradients of type G, up to kMost of them.
template <typename G, typename E, NoiseKind kKind, unsigned kMost>
constexpr unsigned kQuantizeEncodeResident = sizeof(G) == 2 && std::is_same_v<E, NoResidual>&& kKind
                                                                   == NoiseKind::kNone&& kMost
                                                                   == kFewSegments
                                                 ? kQuantizeResident.plain16
                                                 : kEncodeResident<E, kKind>;
template <typename T, DecodeMode kMode, unsigned kMostFrames>
constexpr unsigned kDecodeResident = kMode == DecodeMode::kAdd
                                         ? (kMostFrames == kFewFrames
                                                ? kQuantizeResident.added
                                                : kQuantizeResident.added_many)
                                     : sizeof(T) == 4 || kMostFrames != kFewFrames
                                         ? kQuantizeResident.decode
                                         : kQuantizeResident.decode16;
template <NoiseKind kKind>
constexpr unsigned kReduceResident =
    kKind == NoiseKind::kAny ? kQuantizeResident.reduced_any : kQuantizeResident.reduced;

}  // namespace tersor::kernels
