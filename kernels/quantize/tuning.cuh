// The policies of the kernels of quantising formats: threads per block, minimum resident blocks per
// multiprocessor and rounds per block, for each kernel and architecture. More blocks hide more
// memory latency, but leave fewer registers: 65,536 / (threads · blocks) per thread. Each number of
// blocks is the maximum without register spills in any format (`ctest -L resources`).
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/noise.cuh"

#include <type_traits>

namespace tersor::kernels {

struct QuantizeResident {
  unsigned from;  // first architecture of this row, as in __CUDA_ARCH__
  // Encode and decode, in blocks of 128 threads:
  unsigned plain;     // encode without feedback and noise, codes of 8 bits
  unsigned plain4;    // the same, narrower codes: sums of four columns
  unsigned feedback;  // encode with feedback
  unsigned random;    // encode with NoiseKind::kUnits
  unsigned any;       // encode with NoiseKind::kAny: one counter per value
  unsigned decode;
  unsigned added;  // decode with DecodeMode::kAdd
  // Reduce, and the kernels of intsum, in blocks of 256 threads:
  unsigned reduced;
  unsigned reduced_any;
  unsigned units;  // encode without feedback; decode
  unsigned units_feedback;
  unsigned units_any;
};

/// The newest architecture is last. The first row also applies to the PTX from which drivers
/// compile code for other architectures.
constexpr QuantizeResident kQuantizeTuning[] = {
    {.from = 0,
     .plain = 8,
     .plain4 = 7,
     .feedback = 4,
     .random = 6,
     .any = 2,
     .decode = 8,
     .added = 6,
     .reduced = 3,
     .reduced_any = 2,
     .units = 4,
     .units_feedback = 3,
     .units_any = 1},
    {.from = 900,
     .plain = 8,
     .plain4 = 7,
     .feedback = 5,
     .random = 6,
     .any = 3,
     .decode = 8,
     .added = 6,
     .reduced = 3,
     .reduced_any = 2,
     .units = 4,
     .units_feedback = 3,
     .units_any = 2},
    {.from = 1000,
     .plain = 8,
     .plain4 = 7,
     .feedback = 4,
     .random = 6,
     .any = 2,
     .decode = 8,
     .added = 6,
     .reduced = 3,
     .reduced_any = 1,
     .units = 4,
     .units_feedback = 3,
     .units_any = 1},
};
constexpr QuantizeResident kQuantizeResident = tuning_of(kQuantizeTuning);

/// The policy of an encoding kernel. See FrameCoder.
template <class Format, typename E, NoiseKind kKind>
struct QuantizeEncodePolicy {
  static constexpr unsigned kThreads = 128;
  static constexpr unsigned kRounds = 8;  // per block at most; a warp processes a tile per round
  static constexpr unsigned kResident = kKind == NoiseKind::kAny ? kQuantizeResident.any
                                        : !std::is_same_v<E, NoResidual>
                                            ? kQuantizeResident.feedback
                                        : kKind == NoiseKind::kUnits ? kQuantizeResident.random
                                        : Format::kBits == 8         ? kQuantizeResident.plain
                                                                     : kQuantizeResident.plain4;
  static constexpr unsigned kQuads = 1;
};

/// The policy of a decoding kernel. See FrameReader. A window needs a few more registers.
template <DecodeMode kMode, bool kWindow>
struct QuantizeDecodePolicy {
  static constexpr unsigned kThreads = 128;
  static constexpr unsigned kRounds = 8;
  static constexpr unsigned kResident =
      (kMode == DecodeMode::kAdd ? kQuantizeResident.added : kQuantizeResident.decode) - kWindow;
};

/// Resident blocks of kernels that encode in units.
template <typename E, NoiseKind kKind>
constexpr unsigned kEncodeResident =
    kKind == NoiseKind::kAny        ? kQuantizeResident.units_any
    : std::is_same_v<E, NoResidual> ? kQuantizeResident.units
                                    : kQuantizeResident.units_feedback;
template <NoiseKind kKind>
constexpr unsigned kReduceResident =
    kKind == NoiseKind::kAny ? kQuantizeResident.reduced_any : kQuantizeResident.reduced;

}  // namespace tersor::kernels
