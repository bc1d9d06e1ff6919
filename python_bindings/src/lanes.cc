// Binds <tersor/lanes.h>. Arrays of accumulators may have any dtype.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"

#include <nanobind/nanobind.h>
#include <tersor/error.h>
#include <tersor/lanes.h>

#include <cstdint>

namespace tersor::python {
namespace {

using namespace nb::literals;

template <typename Span>
Span on_host(const Array<Span>& array, const char* name) {
  if (array.memory == Memory::kHost) return array.span;
  throw InvalidArgument(std::string(name) + ": lanes are made on the host; copy the array there");
}

template <typename Span>
auto floats(const Array<Span>& array, const char* name) {
  const Span values = on_host(array, name);
  if (values.dtype() != Dtype::kF32)
    throw InvalidArgument(std::string(name) + ": lanes are of float32 values");
  return values.template as<float>();
}

std::size_t encode(nb::handle values, const LaneFormat& format, std::uint64_t secret,
                   nb::handle lanes) {
  const auto from = read_values(values, {.name = "values"});
  const auto to = write_bytes(lanes, {.name = "out"});
  const auto source = floats(from, "values");
  const ByteSpan target = on_host(to, "out");
  const nb::gil_scoped_release released;
  return encode_lanes(source, format, secret, target);
}

void decode(nb::handle lanes, const LaneFormat& format, nb::handle values) {
  const auto from = read_bytes(lanes, {.name = "lanes"});
  const auto to = write_values(values, {.name = "out"});
  const ConstByteSpan source = on_host(from, "lanes");
  const auto target = floats(to, "out");
  const nb::gil_scoped_release released;
  decode_lanes(source, format, target);
}

void combine(nb::handle sums, nb::handle others, unsigned lanes, bool subtract) {
  const auto left = write_bytes(sums, {.name = "sums"});
  const auto right = read_bytes(others, {.name = "others"});
  const ByteSpan target = on_host(left, "sums");
  const ConstByteSpan source = on_host(right, "others");
  const nb::gil_scoped_release released;
  subtract ? subtract_lanes(target, source, lanes) : add_lanes(target, source, lanes);
}

}  // namespace

void bind_lanes(nb::module_& module) {
  nb::class_<LaneFormat>(module, "LaneFormat")
      .def(
          "__init__",
          [](LaneFormat* self, unsigned bits, unsigned lanes, float scale) {
            new (self) LaneFormat{bits, lanes, scale};
          },
          "bits"_a, "lanes"_a, "scale"_a);
  module.def("encode_lanes", &encode, "values"_a, "format"_a, "secret"_a, "out"_a);
  module.def("decode_lanes", &decode, "lanes"_a, "format"_a, "out"_a);
  module.def("combine_lanes", &combine, "sums"_a, "others"_a, "lanes"_a, "subtract"_a);
}

}  // namespace tersor::python
