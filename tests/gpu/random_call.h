// Random codec calls drawn from a seed: spec, counts near the kernels' tile sizes, types, values of
// all kinds, alignment, flags and state words.
#pragma once

#include "tests/device/hard_values.h"

#include <tersor/codec.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tersor::test {

struct RandomCall {
  std::uint64_t seed = 0;
  std::string spec;
  std::vector<Segment> segments;
  Dtype dtype = Dtype::kF32;
  Dtype residual_dtype = Dtype::kF32;
  ValueKind gradients, residuals;
  bool in_place = false;  ///< True if residuals and the codec's memory are updated in place
  bool remembers = true;  ///< True if codecs with memory get memory
  Checksum checksum = Checksum::kOn;
  std::size_t frames = 1;  ///< frames to decode and reduce
  StateWords words;
  float native_factor = 1.0f;
  std::optional<std::uint32_t> active;  ///< the first segment's flag

  /// Spans of a segment. kNextResidual: the written residual unless in place.
  enum class Part { kGradient, kResidual, kOutput, kNextResidual, kParts };
  /// Distance of each span from an aligned address, in values.
  std::array<std::size_t, static_cast<std::size_t>(Part::kParts)> shifts = {};

  std::size_t shift(Part part) const { return shifts[static_cast<std::size_t>(part)]; }
  std::vector<float> values(Part part, std::size_t segment) const;

  /// A description for error messages.
  std::string text() const;
};

/// A seed gives the same call on every machine.
RandomCall draw_call(std::uint64_t seed);

}  // namespace tersor::test
