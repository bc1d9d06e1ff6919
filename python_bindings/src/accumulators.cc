// Binds <tersor/accumulators.h>. Arrays of accumulators may have any dtype.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"

#include <tersor/accumulators.h>
#include <tersor/error.h>

#include <cstdint>

namespace tersor::python {
namespace {

using namespace nb::literals;

std::size_t encode(nb::handle values, const AccumulatorFormat& format, std::uint64_t secret,
                   nb::handle accumulators) {
  const auto from = read_values(values, {.name = "values", .on_host = true});
  const auto to = write_bytes(accumulators, {.name = "out", .on_host = true});
  const auto source = host_floats(from, "values");
  const nb::gil_scoped_release released;
  return encode_accumulators(source, format, secret, to.span);
}

void decode(nb::handle accumulators, const AccumulatorFormat& format, nb::handle values) {
  const auto from = read_bytes(accumulators, {.name = "lanes", .on_host = true});
  const auto to = write_values(values, {.name = "out", .on_host = true});
  const auto target = host_floats(to, "out");
  const nb::gil_scoped_release released;
  decode_accumulators(from.span, format, target);
}

void combine(nb::handle sums, nb::handle others, unsigned accumulator_bits, bool subtract) {
  const auto left = write_bytes(sums, {.name = "sums", .on_host = true});
  const auto right = read_bytes(others, {.name = "others", .on_host = true});
  const nb::gil_scoped_release released;
  subtract ? subtract_accumulators(left.span, right.span, accumulator_bits)
           : add_accumulators(left.span, right.span, accumulator_bits);
}

}  // namespace

void bind_accumulators(nb::module_& module) {
  nb::class_<AccumulatorFormat>(module, "LaneFormat")
      .def(
          "__init__",
          [](AccumulatorFormat* self, unsigned bits, unsigned accumulator_bits, float scale) {
            new (self) AccumulatorFormat{bits, accumulator_bits, scale};
          },
          "bits"_a, "lanes"_a, "scale"_a);
  module.def("encode_lanes", &encode, "values"_a, "format"_a, "secret"_a, "out"_a);
  module.def("decode_lanes", &decode, "lanes"_a, "format"_a, "out"_a);
  module.def("combine_lanes", &combine, "sums"_a, "others"_a, "lanes"_a, "subtract"_a);
}

}  // namespace tersor::python
