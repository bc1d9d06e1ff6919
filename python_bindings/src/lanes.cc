// Binds <tersor/lanes.h>. Arrays of accumulators may have any dtype.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"

#include <tersor/error.h>
#include <tersor/lanes.h>

#include <cstdint>

namespace tersor::python {
namespace {

using namespace nb::literals;

std::size_t encode(nb::handle values, const LaneFormat& format, std::uint64_t secret,
                   nb::handle lanes) {
  const auto from = read_values(values, {.name = "values", .on_host = true});
  const auto to = write_bytes(lanes, {.name = "out", .on_host = true});
  const auto source = host_floats(from, "values");
  const nb::gil_scoped_release released;
  return encode_lanes(source, format, secret, to.span);
}

void decode(nb::handle lanes, const LaneFormat& format, nb::handle values) {
  const auto from = read_bytes(lanes, {.name = "lanes", .on_host = true});
  const auto to = write_values(values, {.name = "out", .on_host = true});
  const auto target = host_floats(to, "out");
  const nb::gil_scoped_release released;
  decode_lanes(from.span, format, target);
}

void combine(nb::handle sums, nb::handle others, unsigned lanes, bool subtract) {
  const auto left = write_bytes(sums, {.name = "sums", .on_host = true});
  const auto right = read_bytes(others, {.name = "others", .on_host = true});
  const nb::gil_scoped_release released;
  subtract ? subtract_lanes(left.span, right.span, lanes) : add_lanes(left.span, right.span, lanes);
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
