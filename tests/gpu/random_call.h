// Calls of a codec drawn from a seed: spec, counts around the kernels' tiles, types, values of all
// kinds, distances from an aligned address, flags and words.
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
  bool in_place = false;  ///< residual_out is residual_in; the codec's memory likewise
  bool remembers = true;  ///< codecs with a memory are given one
  Checksum checksum = Checksum::kOn;
  std::size_t frames = 1;  ///< that are decoded and reduced
  StateWords words;
  float native_factor = 1.0f;
  std::optional<std::uint32_t> active;  ///< the first segment's flag

  /// A segment's; next: the residual that is written, unless in place.
  enum class Part { kGradient, kResidual, kOutput, kNextResidual, kParts };
  /// Values between an aligned address and each.
  std::array<std::size_t, static_cast<std::size_t>(Part::kParts)> shifts = {};

  std::size_t shift(Part part) const { return shifts[static_cast<std::size_t>(part)]; }
  std::vector<float> values(Part part, std::size_t segment) const;

  /// All of it, for a failure's message.
  std::string text() const;
};

/// The same for the same seed everywhere.
RandomCall draw_call(std::uint64_t seed);

}  // namespace tersor::test
