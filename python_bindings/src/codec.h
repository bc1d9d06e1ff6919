// A codec and its scratch memory behind one Python object: arrays in, frames out, and back.
#pragma once

#include "python_bindings/src/arrays.h"
#include "python_bindings/src/scratch.h"

#include <nanobind/nanobind.h>
#include <tersor/codec.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::python {

/// A Python sequence of arrays.
using Arrays = nb::typed<nb::sequence, nb::object>;

/// What encoding and decoding of a frame must agree on, and where its random numbers come from.
struct FrameOptions {
  std::vector<std::uint64_t> first_indices;  ///< of each array in its parameter; empty: all 0
  std::uint32_t parameter = 0;               ///< of the first array; the others' count on from it
  bool checksum = true;
  std::uint64_t signature = 0;
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  float factor = 1;  ///< on what is encoded
};

/// Arguments of ArrayCodec::decode beside arrays.
struct DecodeOptions {
  bool add = false;
  float factor = 1.0f;
};

class ArrayCodec {
 public:
  ArrayCodec(std::string_view spec, unsigned threads);

  const Codec& codec() const { return *codec_; }

  /// The most that a frame of such arrays takes.
  std::size_t frame_capacity(const std::vector<std::vector<std::size_t>>& shapes,
                             const std::string& dtype) const;
  std::size_t frame_capacity(Arrays gradients) const;

  /// Writes one frame for all arrays. Residuals: one for each array, updated in place, or none.
  /// Returns the frame's true bytes; on a device, where nobody waits for them, its capacity.
  std::size_t encode(Arrays gradients, nb::handle frame, Arrays residuals,
                     const FrameOptions& options, nb::handle stream);

  /// The header of a payload on the host. Throws WireError if the header or the checksum is
  /// damaged, or is not what the options say.
  FrameHeader header(nb::handle frame, const FrameOptions& options) const;

  /// Writes (or adds) `factor` times the sum of the frames' values.
  void decode(Arrays frames, Arrays outputs, const DecodeOptions& decoding,
              const FrameOptions& options, nb::handle stream);

 private:
  Plan plan(const std::vector<Segment>& segments, Dtype dtype, Memory memory,
            std::size_t contributions, unsigned threads) const;

  std::shared_ptr<const Codec> codec_;
  ScratchPool scratches_;
};

}  // namespace tersor::python
