// Binds the allocation of codecs to parameters. Measures arrays in host memory.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/waiting.h"

#include <tersor/allocate.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tersor::python {
namespace {

using Strings = std::vector<std::string>;

AllocationParameter measure(std::string name, nb::handle gradient, const Strings& codecs,
                            unsigned threads) {
  const auto array = read_values(gradient, {.name = name.c_str()});
  if (array.memory == Memory::kDevice)
    throw InvalidArgumentError(name + ": the gradient is on a device; pass a copy in host memory");
  const MatrixShape shape = matrix_of(array.shape);
  const AllocationGradient sample{
      .name = name, .gradient = array.span, .rows = shape.rows, .columns = shape.columns};
  const GilReleased release;
  Threads workers(threads);
  return measure_candidates(sample, codecs, &workers);
}

std::vector<std::pair<std::string, std::string>> rules_of_allocation(const Allocation& allocation) {
  std::vector<std::pair<std::string, std::string>> rules;
  for (const ReducerRule& rule : allocation.rules) rules.emplace_back(rule.pattern, rule.codec);
  return rules;
}

using State = std::tuple<std::string, std::size_t, double,
                         std::vector<std::tuple<std::string, std::size_t, double>>>;

State state_of(const AllocationParameter& parameter) {
  State state{parameter.name, parameter.count, parameter.energy, {}};
  for (const AllocationCandidate& one : parameter.candidates)
    std::get<3>(state).emplace_back(one.codec, one.bytes, one.energy_lost);
  return state;
}

AllocationParameter parameter_of(const State& state) {
  const auto& [name, count, energy, candidates] = state;
  AllocationParameter parameter{.name = name, .count = count, .energy = energy, .candidates = {}};
  for (const auto& [codec, bytes, lost] : candidates)
    parameter.candidates.push_back({codec, bytes, lost});
  return parameter;
}

}  // namespace

void bind_allocate(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<AllocationParameter>(
      module, "AllocationParameter",
      "The measured sizes and errors of codecs for one parameter. Can be pickled.")
      .def_ro("name", &AllocationParameter::name, "Name of the parameter.")
      .def_ro("energy", &AllocationParameter::energy,
              "Sum of the squared gradient values over all samples.")
      .def("add", &add_sample, "sample"_a,
           "Adds the energies of another sample of the same parameter.\n\n"
           "Args:\n"
           "  sample: Measurements with the same value count and codecs.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The samples are of different parameters.")
      .def("__getstate__", &state_of, "For pickle.")
      .def(
          "__setstate__",
          [](AllocationParameter& self, const State& state) {
            new (&self) AllocationParameter(parameter_of(state));
          },
          "For pickle.");
  nb::class_<Allocation>(module, "Allocation", "A codec for each parameter.")
      .def_prop_ro("rules", &rules_of_allocation, "Pairs of a parameter name and a codec.")
      .def_prop_ro("bits", &Allocation::bits, "Bits per value of one rank's payloads.")
      .def_ro("bytes", &Allocation::bytes, "Bytes of one rank's payloads.")
      .def_ro("energy", &Allocation::energy, "Sum of the squared gradient values.")
      .def_ro("energy_lost", &Allocation::energy_lost, "Sum of the squared errors.");
  module.def("allocation_codecs", &allocation_codecs,
             "Returns the specs of the default candidates.");
  module.def("measure_candidates", &measure, "name"_a, "gradient"_a, "codecs"_a, "threads"_a,
             "Measures the size and the error of each codec for one gradient.\n\n"
             "Args:\n"
             "  name: Name of the parameter.\n"
             "  gradient: float32, bfloat16 or float16 values in host memory, any shape.\n"
             "  codecs: Specs of the codecs.\n"
             "  threads: Number of threads; 0: one per core.\n\n"
             "Raises:\n"
             "  InvalidArgumentError: The gradient is on a device, or a value is not finite.");
  module.def(
      "allocate",
      [](const std::vector<AllocationParameter>& parameters, double bits) {
        return allocate(parameters, bits);
      },
      "parameters"_a, "bits"_a,
      "Selects a codec for each parameter with the smallest error within a budget.\n\n"
      "Args:\n"
      "  parameters: Results of measure_candidates.\n"
      "  bits: Budget in bits per value, averaged over all parameters.\n\n"
      "Raises:\n"
      "  InvalidArgumentError: The budget is smaller than the smallest possible size.");
}

}  // namespace tersor::python
