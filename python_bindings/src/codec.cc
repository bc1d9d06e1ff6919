// Implements codec.h. The library checks counts, dtypes, capacities and alignment.
#include "python_bindings/src/codec.h"

#include "codecs/frame.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

#include <nanobind/nanobind.h>
#include <tersor/code_sections.h>
#include <tersor/error.h>
#include <tersor/wire.h>

#include <cmath>
#include <string>

namespace tersor::python {
namespace {

/// The first axis gives the rows, as in a weight of shape (outputs, inputs…).
Segment segment_of(const std::vector<std::size_t>& shape) {
  const auto [count, rows, columns] = matrix_of(shape);
  if (columns == 0) return {.count = count};
  return {.count = count, .rows = rows, .columns = columns};
}

void place_segments(std::vector<Segment>& segments, const FrameOptions& options) {
  const auto& first = options.first_indices;
  if (!first.empty() && first.size() != segments.size())
    throw InvalidArgumentError("first_index has " + std::to_string(first.size()) + " numbers for " +
                               std::to_string(segments.size()) +
                               " arrays; pass one number per array");
  if (segments.size() > std::size_t{1} << 32 ||
      options.parameter > (std::uint64_t{1} << 32) - std::max<std::size_t>(segments.size(), 1))
    throw InvalidArgumentError("parameter is " + std::to_string(options.parameter) +
                               ", the number of the first of " + std::to_string(segments.size()) +
                               " arrays; pass a number that leaves all of them below 2^32");
  for (std::size_t i = 0; i < segments.size(); ++i) {
    segments[i].parameter = options.parameter + static_cast<std::uint32_t>(i);
    if (!first.empty()) segments[i].first_index = first[i];
  }
}

template <typename Span>
std::vector<Segment> segments_of(const ArrayList<Span>& list, const FrameOptions& options) {
  std::vector<Segment> segments;
  for (const auto& array : list.arrays) segments.push_back(segment_of(array.shape));
  place_segments(segments, options);
  return segments;
}

std::vector<SegmentState> states_of(const ArrayList<ValueSpan>& residuals) {
  std::vector<SegmentState> states;
  for (const ValueSpan residual : residuals.spans)
    states.push_back({.residual_in = residual, .residual_out = residual});
  return states;
}

FrameIdentity identity_of(const FrameOptions& options) {
  return {.signature = options.signature,
          .checksum = options.checksum ? Checksum::kOn : Checksum::kOff};
}

template <typename First, typename Span>
void check_same_device(const Array<First>& first, const ArrayList<Span>& others, const char* name) {
  for (const auto& array : others.arrays) check_same_device(first, array, name);
}

nb::object first_of(Arrays arrays, const char* name) {
  if (nb::len(arrays) == 0)
    throw InvalidArgumentError(std::string(name) + " is an empty list; pass at least one array");
  return arrays[0];
}

/// An output frame must be a flat byte array, to be cut to the used bytes afterwards.
void check_flat(const Array<ByteSpan>& frame) {
  if (frame.shape.size() != 1 || frame.shape[0] != frame.span.size())
    throw InvalidArgumentError("out: pass a flat uint8 array of max_payload_bytes(...) bytes");
}

void check_residuals(const Codec& codec, Arrays residuals) {
  if (codec.has_feedback() && nb::len(residuals) == 0)
    throw InvalidArgumentError(
        "residual: the codec " + codec.spec().text() +
        " needs a residual; pass an array like the gradient, zeros in the first "
        "step and the same array in every step");
  if (!codec.has_feedback() && nb::len(residuals) != 0)
    throw InvalidArgumentError(
        "residual: the codec " + codec.spec().text() +
        " keeps no residual; add \"+ef\" to the spec, or leave residual out");
}

/// The factor is passed in the state words. Codecs without feedback do not read state words.
void check_factor(const Codec& codec, float factor, Memory memory) {
  if (factor == 1) return;
  if (!std::isfinite(factor))
    throw InvalidArgumentError("factor is " + std::to_string(factor) + "; pass a finite number");
  if (!codec.has_feedback())
    throw InvalidArgumentError("factor: the codec " + codec.spec().text() +
                               " keeps no residual; pass factor to decode, or multiply the array");
  if (memory == Memory::kDevice)
    throw InvalidArgumentError("factor: supported in host memory only; multiply the array");
}

}  // namespace

ArrayCodec::ArrayCodec(std::string_view spec, unsigned threads)
    : codec_(make_codec(spec)), scratches_(threads) {}

Plan ArrayCodec::plan(const std::vector<Segment>& segments, Dtype dtype, Memory memory,
                      std::size_t contributions, unsigned threads) const {
  return codec_->plan({.segments = segments,
                       .dtype = dtype,
                       .contributions = contributions,
                       .memory = memory,
                       .threads = threads});
}

std::size_t ArrayCodec::frame_capacity(const std::vector<std::vector<std::size_t>>& shapes,
                                       const std::string& dtype) const {
  std::vector<Segment> segments;
  for (const auto& shape : shapes) segments.push_back(segment_of(shape));
  return plan(segments, parse_choice<Dtype>(dtype), Memory::kHost, 1, 1).frame_bytes;
}

std::size_t ArrayCodec::frame_capacity(Arrays gradients) const {
  const auto values = import_all(gradients, read_values, {.name = "array", .use = Use::kShape});
  const Dtype dtype = values.spans.empty() ? Dtype::kF32 : values.spans.front().dtype();
  return plan(segments_of(values, {}), dtype, Memory::kHost, 1, 1).frame_bytes;
}

std::size_t ArrayCodec::encode(Arrays gradients, nb::handle frame, Arrays residuals,
                               const FrameOptions& options, nb::handle given) {
  const nb::object first = first_of(gradients, "array");
  const nb::object stream = stream_of_call(given, first, "array");
  check_residuals(*codec_, residuals);
  const auto values = import_all(gradients, read_values, {.name = "array", .stream = stream});
  const auto residual_spans =
      import_all(residuals, write_values, {.name = "residual", .stream = stream});
  const auto output = write_bytes(frame, {.name = "out", .stream = stream});
  check_flat(output);
  const auto& front = values.arrays.front();
  check_same_device(front, values, "array");
  check_same_device(front, residual_spans, "residual");
  check_same_device(front, output, "out");

  check_factor(*codec_, options.factor, front.memory);

  const kernels::DeviceScope scope(front.device);
  const Location location{front.memory, front.device, to_stream(stream, first, front.memory)};
  const StateWords words{.step = options.step, .gradient_factor = options.factor};
  const std::vector<Segment> segments = segments_of(values, options);
  const std::vector<SegmentState> states = states_of(residual_spans);
  return without_gil([&] {
    const ScratchPool::Loan scratch(scratches_, location);
    const Plan sizes = plan(segments, front.span.dtype(), location.memory, 1, scratch->threads());
    codec_->encode({.segments = segments,
                    .gradients = values.spans,
                    .states = states,
                    .words = options.factor == 1 ? nullptr : &words,
                    .random = {.key = options.seed, .step = options.step},
                    .identity = identity_of(options),
                    .execution = scratch->execution(sizes, location)},
                   output.span);
    return location.memory == Memory::kHost ? frame_bytes(output.span) : sizes.frame_bytes;
  });
}

FrameHeader ArrayCodec::header(nb::handle frame, const FrameOptions& options) const {
  auto bytes = read_bytes(frame, {.name = "payload"});
  if (bytes.memory == Memory::kDevice)
    throw InvalidArgumentError(
        "payload is on a device; pass a copy in host memory, because reading the header would "
        "wait");
  const std::vector<Buffer> copies = align_frames({&bytes.span, 1}, bytes.memory);
  frame_bytes(bytes.span);
  const FrameHeader header = read_frame_header(bytes.span);
  if (header.codec_id != codec_->id() || header.signature != options.signature ||
      encoding::has_checksum(header) != options.checksum)
    throw WireError("payload: encoded with another codec, signature or checksum setting");
  if (options.checksum) encoding::check_checksum(bytes.span, nullptr);
  return header;
}

std::vector<std::array<std::size_t, 5>> ArrayCodec::code_sections(
    const std::vector<std::vector<std::size_t>>& shapes, const std::string& dtype, nb::handle frame,
    const FrameOptions& options) const {
  std::vector<Segment> segments;
  for (const auto& shape : shapes) segments.push_back(segment_of(shape));
  place_segments(segments, options);
  std::vector<std::array<std::size_t, 5>> all;
  for (const CodeSections& one : tersor::code_sections(*codec_, segments))
    all.push_back({one.scales, one.scales_bytes, one.codes, one.codes_bytes, one.largest});
  auto bytes = read_bytes(frame, {.name = "payload"});
  if (bytes.memory == Memory::kDevice) return all;
  const std::vector<Buffer> copies = align_frames({&bytes.span, 1}, bytes.memory);
  check_code_frame(*codec_, segments, parse_choice<Dtype>(dtype), bytes.span, identity_of(options));
  return all;
}

void ArrayCodec::decode(Arrays frames, Arrays outputs, const DecodeOptions& decoding,
                        const FrameOptions& options, nb::handle given) {
  const nb::object first = first_of(outputs, "out");
  const nb::object stream = stream_of_call(given, first, "out");
  const auto values = import_all(outputs, write_values, {.name = "out", .stream = stream});
  auto received = import_all(frames, read_bytes, {.name = "payload", .stream = stream});
  const auto& front = values.arrays.front();
  check_same_device(front, values, "out");
  check_same_device(front, received, "payload");

  const kernels::DeviceScope scope(front.device);
  const Location location{front.memory, front.device, to_stream(stream, first, front.memory)};
  const std::vector<Segment> segments = segments_of(values, options);
  without_gil([&] {
    const std::vector<Buffer> copies = align_frames(received.spans, location.memory);
    const ScratchPool::Loan scratch(scratches_, location);
    const Plan sizes = plan(segments, front.span.dtype(), location.memory, received.spans.size(),
                            scratch->threads());
    codec_->decode({.segments = segments,
                    .frames = received.spans,
                    .outputs = values.spans,
                    .mode = decoding.add ? DecodeMode::kAdd : DecodeMode::kAssign,
                    .factor = decoding.factor,
                    .identity = identity_of(options),
                    .execution = scratch->execution(sizes, location)});
  });
}

}  // namespace tersor::python
