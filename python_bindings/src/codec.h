// A codec and its scratch memory in a Python object: arrays to frames, and frames to arrays.
#pragma once

#include "python_bindings/src/arrays.h"
#include "python_bindings/src/scratch.h"

#include <nanobind/nanobind.h>
#include <tersor/codec.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::python {

/// The options common to the encoding and decoding of a frame, and the source of random numbers.
struct FrameOptions {
  /// First index of each array in its parameter; empty: all 0.
  std::vector<std::uint64_t> first_indices;
  /// Parameter of the first array; later arrays have consecutive numbers.
  std::uint32_t parameter = 0;
  bool checksum = true;
  std::uint64_t signature = 0;
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  float factor = 1;  ///< factor of the encoded values
};

/// Arguments of ArrayCodec::decode besides the arrays.
struct DecodeOptions {
  bool add = false;
  float factor = 1.0f;
};

class ArrayCodec {
 public:
  ArrayCodec(std::string_view spec, unsigned threads);

  const Codec& codec() const { return *codec_; }

  /// Returns the maximum frame size for these arrays, in bytes.
  std::size_t frame_capacity(const std::vector<std::vector<std::size_t>>& shapes,
                             const std::string& dtype) const;
  std::size_t frame_capacity(Arrays gradients) const;

  /// Writes a frame for all arrays. `residuals` holds an array per gradient, updated in place,
  /// or none. Returns the used bytes; on a device the capacity, because the call does not wait.
  std::size_t encode(Arrays gradients, nb::handle frame, Arrays residuals,
                     const FrameOptions& options, nb::handle stream);

  /// Returns the header of a host payload. Throws WireError if the header or the checksum is
  /// damaged or differs from the options.
  FrameHeader header(nb::handle frame, const FrameOptions& options) const;

  /// Returns, for each array, offset and size of the scales and of the codes in bytes of the frame,
  /// and the offset of the largest magnitude (nvfp4) or 0.
  /// Checks a frame in host memory; reads no frame on a device.
  std::vector<std::array<std::size_t, 5>> code_sections(
      const std::vector<std::vector<std::size_t>>& shapes, const std::string& dtype,
      nb::handle frame, const FrameOptions& options) const;

  /// Assigns or adds `factor` times the sum of the frames' values to `outputs`.
  void decode(Arrays frames, Arrays outputs, const DecodeOptions& decoding,
              const FrameOptions& options, nb::handle stream);

 private:
  Plan plan(const std::vector<Segment>& segments, Dtype dtype, Memory memory,
            std::size_t contributions, unsigned threads) const;

  std::shared_ptr<const Codec> codec_;
  ScratchPool scratches_;
};

}  // namespace tersor::python
