// Binds <tersor/accumulators.h>. Arrays of accumulators may have any dtype.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/waiting.h"

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
  const GilReleased released;
  return encode_accumulators(source, format, secret, to.span);
}

void decode(nb::handle accumulators, const AccumulatorFormat& format, nb::handle values) {
  const auto from = read_bytes(accumulators, {.name = "accumulators", .on_host = true});
  const auto to = write_values(values, {.name = "out", .on_host = true});
  const auto target = host_floats(to, "out");
  const GilReleased released;
  decode_accumulators(from.span, format, target);
}

void combine(nb::handle sums, nb::handle others, unsigned accumulator_bits, bool subtract) {
  const auto left = write_bytes(sums, {.name = "sums", .on_host = true});
  const auto right = read_bytes(others, {.name = "others", .on_host = true});
  const GilReleased released;
  subtract ? subtract_accumulators(left.span, right.span, accumulator_bits)
           : add_accumulators(left.span, right.span, accumulator_bits);
}

}  // namespace

void bind_accumulators(nb::module_& module) {
  nb::class_<AccumulatorFormat>(module, "AccumulatorFormat",
                                "The format of codes and their accumulators.")
      .def(
          "__init__",
          [](AccumulatorFormat* self, unsigned bits, unsigned accumulator_bits, float scale) {
            new (self) AccumulatorFormat{bits, accumulator_bits, scale};
          },
          "bits"_a, "accumulator_bits"_a, "scale"_a,
          "Args:\n"
          "  bits: Bits per code, 2 to 14.\n"
          "  accumulator_bits: Bits per accumulator: 8, 16 or 32, and at least `bits`.\n"
          "  scale: The value of code 1: finite, at least 2^-100.");
  module.def("encode_accumulators", &encode, "values"_a, "format"_a, "secret"_a, "out"_a,
             "Writes the codes of values, and returns the number of clipped values.\n\n"
             "Args:\n"
             "  values: float32 values in host memory.\n"
             "  format: The AccumulatorFormat.\n"
             "  secret: Seed of the random rounding, below 2^64.\n"
             "  out: Accumulators, one per value.\n\n"
             "Raises:\n"
             "  InvalidArgumentError: The format or a value is invalid.");
  module.def("decode_accumulators", &decode, "accumulators"_a, "format"_a, "out"_a,
             "Decodes codes, or sums of codes.\n\n"
             "Args:\n"
             "  accumulators: The codes or sums.\n"
             "  format: The AccumulatorFormat of the codes.\n"
             "  out: float32 values, one per accumulator.\n\n"
             "Raises:\n"
             "  InvalidArgumentError: The format or a size is invalid.");
  module.def("combine_accumulators", &combine, "sums"_a, "others"_a, "accumulator_bits"_a,
             "subtract"_a,
             "Adds or subtracts accumulators, which wrap around.\n\n"
             "Args:\n"
             "  sums: Accumulators, changed in place.\n"
             "  others: As many accumulators.\n"
             "  accumulator_bits: 8, 16 or 32.\n"
             "  subtract: True to subtract.\n\n"
             "Raises:\n"
             "  InvalidArgumentError: A size is invalid.");
}

}  // namespace tersor::python
