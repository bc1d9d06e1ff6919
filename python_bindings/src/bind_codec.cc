// Binds codecs: the registry, frame headers, and the codec class.
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/codec.h"

#include <tersor/codec.h>
#include <tersor/isa.h>
#include <tersor/wire.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::python {
namespace {

void bind_registry(nb::module_& module) {
  nb::class_<CodecOption>(module, "CodecOption", "An option of a codec's spec.")
      .def_ro("key", &CodecOption::name, "Name of the option.")
      .def_prop_ro("values", &CodecOption::range, "The accepted values, as text.")
      .def_ro("default", &CodecOption::standard, "The default value, as text.");
  nb::class_<CodecInfo>(module, "CodecInfo", "The registry's entry of a codec.")
      .def_ro("name", &CodecInfo::name, "Name in a spec.")
      .def_ro("id", &CodecInfo::id, "Number of the codec in frame headers.")
      .def_ro("summary", &CodecInfo::summary, "A description in one line.")
      .def_ro("options", &CodecInfo::options, "List of CodecOption.");
  module.def("codecs", &codecs, "Returns the CodecInfo of every codec.");
}

void bind_instruction_sets(nb::module_& module) {
  module.def(
      "instruction_sets",
      [] {
        std::vector<std::string_view> names;
        for (const Isa isa : available_isas()) names.push_back(isa_name(isa));
        return names;
      },
      "Returns the names of the instruction sets that this machine can run, and Tersor has.");
  module.def(
      "instruction_set", [] { return isa_name(current_isa()); },
      "Returns the name of the instruction set in use.");
  module.def(
      "force_instruction_set",
      [](std::optional<std::string_view> name) {
        force_isa(name ? std::optional(parse_isa(*name)) : std::nullopt);
      },
      nb::arg("name").none(),
      "Selects the instruction set of all codecs, for tests and benchmarks.\n\n"
      "Args:\n"
      "  name: One of instruction_sets(); None: the best.\n\n"
      "Raises:\n"
      "  InvalidArgumentError: The machine cannot run this set.");
}

/// Throws WireError for an invalid header, or a dtype other than a gradient's.
std::string_view dtype_of_header(const FrameHeader& header) {
  const auto dtype = static_cast<Dtype>(header.dtype);
  if (!is_gradient_dtype(dtype))
    throw WireError("frame dtype is " + std::to_string(header.dtype) +
                    "; expected f32, bf16 or f16");
  return dtype_name(dtype);
}

void bind_frames(nb::module_& module) {
  nb::class_<FrameHeader>(module, "FrameHeader", "The header of a frame.")
      .def_ro("codec_id", &FrameHeader::codec_id, "Number of the codec.")
      .def_prop_ro("dtype", &dtype_of_header, "Dtype of the gradient: f32, bf16 or f16.")
      .def_ro("segments", &FrameHeader::segments, "Number of encoded arrays.")
      .def_ro("count", &FrameHeader::count, "Number of values.")
      .def_ro("payload_bytes", &FrameHeader::payload_bytes, "Bytes after the header.");
}

void bind_codec_options(nb::module_& module) {
  nb::class_<FrameOptions>(module, "FrameOptions", "Options of one encoding.")
      .def(nb::init<std::vector<std::uint64_t>, std::uint32_t, bool, std::uint64_t, std::uint64_t,
                    std::uint32_t, float>(),
           nb::arg("first_indices"), nb::arg("parameter"), nb::arg("checksum"),
           nb::arg("signature"), nb::arg("seed") = 0, nb::arg("step") = 0, nb::arg("factor") = 1.0f,
           "Args:\n"
           "  first_indices: Index of the first value of each array in its parameter.\n"
           "  parameter: Number of the parameter, which selects random numbers.\n"
           "  checksum: True to add a checksum.\n"
           "  signature: A number that the decoder compares.\n"
           "  seed: Seed of stochastic rounding.\n"
           "  step: Step of stochastic rounding.\n"
           "  factor: Factor of the values before encoding.");
  nb::class_<DecodeOptions>(module, "DecodeOptions", "Options of one decoding.")
      .def(nb::init<bool, float>(), nb::arg("add"), nb::arg("factor"),
           "Args:\n"
           "  add: True to add to the outputs, False to overwrite the outputs.\n"
           "  factor: Factor of the decoded values.");
}

template <auto kTrait>
bool trait(const ArrayCodec& codec) {
  return codec.codec().traits().*kTrait;
}

}  // namespace

void bind_codec(nb::module_& module) {
  bind_registry(module);
  bind_instruction_sets(module);
  bind_frames(module);
  bind_codec_options(module);
  nb::class_<ArrayCodec>(module, "Codec", "A codec with threads and scratch memory.")
      .def(nb::init<std::string_view, unsigned>(), nb::arg("spec"), nb::arg("threads"),
           "Args:\n"
           "  spec: Name and options of the codec.\n"
           "  threads: Number of threads; 0: one per core.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The spec is invalid.")
      .def_prop_ro(
          "spec", [](const ArrayCodec& codec) { return codec.codec().spec().text(); },
          "The spec with all options.")
      .def_prop_ro(
          "id", [](const ArrayCodec& codec) { return codec.codec().id(); },
          "Number of the codec in frame headers.")
      .def_prop_ro(
          "has_feedback", [](const ArrayCodec& codec) { return codec.codec().has_feedback(); },
          "True if the spec has \"+ef\".")
      .def_prop_ro("lossless", &trait<&CodecTraits::lossless>,
                   "True if decoding returns the encoded bits.")
      .def("capacity_of_shapes",
           nb::overload_cast<const std::vector<std::vector<std::size_t>>&, const std::string&>(
               &ArrayCodec::frame_capacity, nb::const_),
           nb::arg("shapes"), nb::arg("dtype"),
           "Returns the maximum bytes of a frame.\n\n"
           "Args:\n"
           "  shapes: Shapes of the arrays.\n"
           "  dtype: \"f32\", \"bf16\" or \"f16\".")
      .def("capacity_of_arrays", nb::overload_cast<Arrays>(&ArrayCodec::frame_capacity, nb::const_),
           nb::arg("gradients"),
           "Returns the maximum bytes of a frame.\n\n"
           "Args:\n"
           "  gradients: The arrays.")
      .def("encode", &ArrayCodec::encode, nb::arg("gradients"), nb::arg("frame"),
           nb::arg("residuals"), nb::arg("options"), nb::arg("stream").none(),
           "Encodes arrays to one frame, and returns the bytes in use.\n\n"
           "Args:\n"
           "  gradients: The arrays.\n"
           "  frame: Memory of capacity_of_arrays() bytes.\n"
           "  residuals: float32 arrays with \"+ef\", changed in place; else empty.\n"
           "  options: The FrameOptions.\n"
           "  stream: Stream of arrays on a device; None: the current stream.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: Arrays or options do not fit.")
      .def("header", &ArrayCodec::header, nb::arg("payload"), nb::arg("options"),
           "Returns the FrameHeader of a frame of this codec.\n\n"
           "Args:\n"
           "  payload: Bytes of the frame.\n"
           "  options: The expected FrameOptions.\n\n"
           "Raises:\n"
           "  WireError: The frame is damaged or of another codec.")
      .def("code_sections", &ArrayCodec::code_sections, nb::arg("shapes"), nb::arg("dtype"),
           nb::arg("payload"), nb::arg("options"),
           "Checks a frame in host memory, and returns a list per array: offset and size of the\n"
           "scales, offset and size of the codes, offset of the largest magnitude (nvfp4) or 0.\n\n"
           "Args:\n"
           "  shapes: Shapes of the arrays.\n"
           "  dtype: \"f32\", \"bf16\" or \"f16\".\n"
           "  payload: Bytes of the frame.\n"
           "  options: The FrameOptions of the encoding.\n\n"
           "Raises:\n"
           "  WireError: The frame is damaged or of another codec.\n"
           "  InvalidArgumentError: The codec has no codes for other programs.")
      .def("decode", &ArrayCodec::decode, nb::arg("frames"), nb::arg("outputs"),
           nb::arg("decoding"), nb::arg("options"), nb::arg("stream").none(),
           "Decodes frames, and writes or adds the sum of their values to the outputs.\n\n"
           "Args:\n"
           "  frames: Frames of the same arrays.\n"
           "  outputs: The arrays to change.\n"
           "  decoding: The DecodeOptions.\n"
           "  options: The FrameOptions of the encoding.\n"
           "  stream: Stream of arrays on a device; None: the current stream.\n\n"
           "Raises:\n"
           "  WireError: A frame is damaged or of another codec.");
}

}  // namespace tersor::python
