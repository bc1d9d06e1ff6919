// Minimum resident blocks of 256 threads per multiprocessor, for each kernel of quantising formats.
// More blocks hide more memory latency, but leave fewer registers: 65,536 / (256 · blocks) per
// thread. Each number is the maximum without register spills in any format (`ctest -L resources`).
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/noise.cuh"

#include <type_traits>

namespace tersor::kernels {

struct QuantizeResident {
  unsigned from;     // first architecture of this row, as in __CUDA_ARCH__
  unsigned plain;    // encode without feedback
  unsigned plain16;  // encode of short lists of 16-bit gradients, nearest rounding, no feedback
  unsigned fed;      // encode with feedback: a second row of each chunk
  unsigned reduced;  // reduce
  unsigned any;      // encode with NoiseKind::kAny: one counter per value
  unsigned reduced_any;
  unsigned decode;
  unsigned decode16;    // decode of few frames to 16-bit values
  unsigned added;       // decode with DecodeMode::kAdd
  unsigned added_many;  // decode of many frames with DecodeMode::kAdd
};

/// The newest architecture is last. The first row also applies to the PTX from which drivers
/// compile code for other architectures.
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
/// Resident blocks for gradients of type G, with up to kMost segments.
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
