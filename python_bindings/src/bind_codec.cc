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
  module.def("instruction_sets", [] {
    std::vector<std::string_view> names;
    for (const Isa isa : available_isas()) names.push_back(isa_name(isa));
    return names;
  });
  module.def("instruction_set", [] { return isa_name(current_isa()); });
  module.def(
      "force_instruction_set",
      [](std::optional<std::string_view> name) {
        force_isa(name ? std::optional(parse_isa(*name)) : std::nullopt);
      },
      nb::arg("name").none());
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
  nb::class_<FrameOptions>(module, "FrameOptions")
      .def(nb::init<std::vector<std::uint64_t>, std::uint32_t, bool, std::uint64_t, std::uint64_t,
                    std::uint32_t, float>(),
           nb::arg("first_indices"), nb::arg("parameter"), nb::arg("checksum"),
           nb::arg("signature"), nb::arg("seed") = 0, nb::arg("step") = 0,
           nb::arg("factor") = 1.0f);
  nb::class_<DecodeOptions>(module, "DecodeOptions")
      .def(nb::init<bool, float>(), nb::arg("add"), nb::arg("factor"));
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
      .def(nb::init<std::string_view, unsigned>(), nb::arg("spec"), nb::arg("threads"))
      .def_prop_ro("spec", [](const ArrayCodec& codec) { return codec.codec().spec().text(); })
      .def_prop_ro("id", [](const ArrayCodec& codec) { return codec.codec().id(); })
      .def_prop_ro("has_feedback",
                   [](const ArrayCodec& codec) { return codec.codec().has_feedback(); })
      .def_prop_ro("lossless", &trait<&CodecTraits::lossless>)
      .def("capacity_of_shapes",
           nb::overload_cast<const std::vector<std::vector<std::size_t>>&, const std::string&>(
               &ArrayCodec::frame_capacity, nb::const_),
           nb::arg("shapes"), nb::arg("dtype"))
      .def("capacity_of_arrays", nb::overload_cast<Arrays>(&ArrayCodec::frame_capacity, nb::const_),
           nb::arg("gradients"))
      .def("encode", &ArrayCodec::encode, nb::arg("gradients"), nb::arg("frame"),
           nb::arg("residuals"), nb::arg("options"), nb::arg("stream").none())
      .def("header", &ArrayCodec::header, nb::arg("payload"), nb::arg("options"))
      .def("decode", &ArrayCodec::decode, nb::arg("frames"), nb::arg("outputs"),
           nb::arg("decoding"), nb::arg("options"), nb::arg("stream").none());
}

}  // namespace tersor::python
