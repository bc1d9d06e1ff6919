// Codecs: the registry as Python sees it.
#include "python_bindings/src/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <tersor/codec.h>

namespace tersor::python {

void bind_codec(nb::module_& module) {
  nb::class_<CodecInfo>(module, "CodecInfo", "What the registry knows of a codec.")
      .def_ro("name", &CodecInfo::name, "As it stands at the beginning of a spec.")
      .def_ro("id", &CodecInfo::id, "Its number on the wire, never reused.")
      .def_ro("summary", &CodecInfo::summary, "One line.")
      .def_ro("keys", &CodecInfo::keys, "Each key with its values and, in brackets, its default.");
  module.def("codecs", &codecs, "All codecs of this build, in the registry's order.");
}

}  // namespace tersor::python
