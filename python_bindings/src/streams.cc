// Selects the CUDA stream of a call: the caller's stream, or the current stream of the array's
// library. DLPack does not carry a stream.
#include "python_bindings/src/arrays.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <tersor/error.h>

#include <cstdint>
#include <string>

namespace tersor::python {
namespace {

StreamView from_number(nb::handle number) {
  return {reinterpret_cast<void*>(nb::cast<std::uintptr_t>(number))};
}

/// Returns "torch" or "cupy" if the array's class or a base class belongs to this library; else an
/// empty string.
std::string library_with_streams(nb::handle array) {
  for (const nb::handle type : array.type().attr("__mro__")) {
    const auto module = nb::cast<std::string>(type.attr("__module__"));
    const std::string library = module.substr(0, module.find('.'));
    if (library == "torch" || library == "cupy") return library;
  }
  return {};
}

StreamView current_stream(nb::handle array) {
  const std::string library = library_with_streams(array);
  if (library == "torch") {
    const nb::object cuda = nb::module_::import_("torch").attr("cuda");
    return from_number(cuda.attr("current_stream")(array.attr("device")).attr("cuda_stream"));
  }
  if (library == "cupy")
    return from_number(
        nb::module_::import_("cupy").attr("cuda").attr("get_current_stream")().attr("ptr"));
  return {};
}

}  // namespace

bool has_current_stream(nb::handle array) { return !library_with_streams(array).empty(); }

StreamView to_stream(nb::handle stream, nb::handle array, Memory memory) {
  if (stream.is_none()) return memory == Memory::kHost ? StreamView{} : current_stream(array);
  if (nb::isinstance<nb::int_>(stream)) return from_number(stream);
  if (nb::hasattr(stream, "cuda_stream")) return from_number(stream.attr("cuda_stream"));
  if (nb::hasattr(stream, "__cuda_stream__"))
    return from_number(stream.attr("__cuda_stream__")()[1]);
  if (nb::hasattr(stream, "ptr")) return from_number(stream.attr("ptr"));
  throw InvalidArgument(
      "stream: pass a stream of PyTorch or CuPy, an int (cudaStream_t) or None, not a " +
      nb::cast<std::string>(stream.type().attr("__qualname__")));
}

}  // namespace tersor::python
