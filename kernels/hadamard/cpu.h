// hadamard on the CPU: ranges of a segment that begin at a block of 256 values, on one thread. The
// arithmetic stands in kernels/hadamard/formulas.h. Same bytes on every instruction set. All
// pointers of values need only their element's alignment.
#pragma once

#include "kernels/host/arguments.h"
#include "kernels/scalar/rotation.h"

#include <tersor/dtype.h>
#include <tersor/modes.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::kernels {

/// Where the scales and planes of a range are written; as many blocks as it has.
struct HadamardOutput {
  unsigned bits;  // of a code
  std::uint16_t* scales;
  std::byte* planes;
};

struct HadamardEncode {
  Sent sent;
  Signs signs;
  HadamardOutput output;
};

/// The scales and planes of one payload, from the block where the range begins. Any bytes will do.
struct HadamardView {
  const std::uint16_t* scales;
  const std::byte* planes;
};

/// The payloads of a range: at least one.
struct HadamardInput {
  unsigned bits;
  std::span<const HadamardView> payloads;
  std::size_t count;
  Signs signs;
};

/// The sum of the payloads, times `factor`, in order, rounded once into the output.
struct HadamardDecode {
  HadamardInput input;
  Decoded to;
};

/// The sum of the payloads, times `factor`, in order, plus residual_factor · residual, coded again.
struct HadamardReduce {
  HadamardInput input;
  float factor;
  ErrorFeedback feedback;
  HadamardOutput output;
};

/// Codes a range, with or without error feedback. Returns how many finite values decode to NaN.
std::size_t hadamard_encode(const HadamardEncode& arguments);

/// Decodes the sum of payloads.
void hadamard_decode(const HadamardDecode& arguments);

/// Adds payloads and codes their sum. Returns what hadamard_encode does.
std::size_t hadamard_reduce(const HadamardReduce& arguments);

}  // namespace tersor::kernels
