// hadamard on the CPU: single-threaded encode, decode and reduce of ranges of a segment. A range
// begins at a block of 256 values. kernels/hadamard/formulas.h defines the arithmetic. The bytes
// are the same on every instruction set. Value pointers need only the alignment of their element
// type.
#pragma once

#include "kernels/host/arguments.h"
#include "kernels/scalar/rotation.h"

#include <tersor/dtype.h>
#include <tersor/modes.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::kernels {

/// The scales and planes written for the blocks of a range.
struct HadamardOutput {
  unsigned bits;  // per code
  std::uint16_t* scales;
  std::byte* planes;
};

struct HadamardEncode {
  EncodeInput sent;
  Signs signs;
  HadamardOutput output;
};

/// The scales and planes of one payload, starting at the range's first block. Any bytes are valid.
struct HadamardView {
  const std::uint16_t* scales;
  const std::byte* planes;
};

/// The payloads of a range, at least one.
struct HadamardInput {
  unsigned bits;
  std::span<const HadamardView> payloads;
  std::size_t count;
  Signs signs;
};

/// The sum of the payloads, in order, times `factor`, rounded once to the output's dtype.
struct HadamardDecode {
  HadamardInput input;
  DecodeOutput to;
};

/// Encodes the sum of the payloads, in order, times `factor`, plus residual_factor · residual.
struct HadamardReduce {
  HadamardInput input;
  float factor;
  ErrorFeedback feedback;
  HadamardOutput output;
};

/// Encodes a range, with or without error feedback. Returns the number of finite values that decode
/// to NaN.
std::size_t hadamard_encode(const HadamardEncode& arguments);

/// Decodes the sum of payloads.
void hadamard_decode(const HadamardDecode& arguments);

/// Adds payloads and encodes the sum. Returns the number of finite values that decode to NaN.
std::size_t hadamard_reduce(const HadamardReduce& arguments);

}  // namespace tersor::kernels
