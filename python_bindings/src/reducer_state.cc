// Binds a reducer's state: checkpoints store the state per parameter rather than as one byte
// string.
#include "comm/reducer/state.h"

#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"

#include <nanobind/ndarray.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tersor::python {

template <>
inline constexpr Texts<2> kChoice<ReducerState::Form> = {"form", {"exact", "portable"}};

namespace {

using Residual = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ResidualView = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

/// One parameter of a state; keeps the state alive. Parameters are only appended, and the
/// residual's values do not move when the list of parameters moves.
struct ParameterState {
  nb::object state;
  std::size_t index;

  ReducerState::Parameter& get() const { return nb::cast<ReducerState&>(state).parameters[index]; }
};

/// Returns a view of a member. The view keeps `self` (a ParameterState) alive, and thereby the
/// state.
template <auto kMember>
ResidualView view_of(nb::handle self) {
  std::vector<float>& values = nb::cast<const ParameterState&>(self).get().*kMember;
  return ResidualView(values.data(), {values.size()}, self);
}

std::vector<float> copy_of(const Residual& values) {
  return {values.data(), values.data() + values.size()};
}

ReducerState read(const nb::bytes& bytes) {
  return read_state({static_cast<const std::byte*>(bytes.data()), bytes.size()});
}

nb::bytes write(const ReducerState& state) {
  const std::vector<std::byte> bytes = write_state(state);
  return nb::bytes(bytes.data(), bytes.size());
}

std::vector<ParameterState> parameters(nb::object self) {
  std::vector<ParameterState> all;
  const std::size_t count = nb::cast<const ReducerState&>(self).parameters.size();
  for (std::size_t i = 0; i < count; ++i) all.push_back({self, i});
  return all;
}

void add(ReducerState& state, std::string name, std::string codec, std::uint64_t count,
         std::uint64_t residual_first, const Residual& residual, const Residual& owner,
         const Residual& memory) {
  state.parameters.push_back({.name = std::move(name),
                              .codec = std::move(codec),
                              .count = count,
                              .residual_first = residual_first,
                              .residual = copy_of(residual),
                              .owner = copy_of(owner),
                              .memory = copy_of(memory)});
}

void bind_parameter(nb::module_& module) {
  const auto field = [](auto member) {
    return [member](const ParameterState& self) { return self.get().*member; };
  };
  using Parameter = ReducerState::Parameter;
  nb::class_<ParameterState>(module, "ParameterState", "The part of a state for one parameter.")
      .def_prop_ro("name", field(&Parameter::name), "Name of the parameter.")
      .def_prop_ro("codec", field(&Parameter::codec), "Spec of the codec.")
      .def_prop_ro("count", field(&Parameter::count), "Number of values of the parameter.")
      .def_prop_ro("residual_first", field(&Parameter::residual_first),
                   "Index of the parameter's value at which the residual begins.")
      .def_prop_ro("residual", &view_of<&Parameter::residual>,
                   "A float32 view: this rank's residual, or the sum over ranks.")
      .def_prop_ro("owner", &view_of<&Parameter::owner>,
                   "A float32 view: the residual of the part that this rank reduces.")
      .def_prop_ro("memory", &view_of<&Parameter::memory>,
                   "A float32 view: the codec's warm-start memory; empty if the codec has none.")
      .def_prop_ro("longest_residual", field(&Parameter::longest_residual),
                   "Number of values of the longest `residual` of any rank.")
      .def_prop_ro("longest_owner", field(&Parameter::longest_owner),
                   "Number of values of the longest `owner` of any rank.");
}

}  // namespace

void bind_reducer_state(nb::module_& module) {
  using namespace nb::literals;
  bind_parameter(module);
  nb::class_<ReducerState> state(module, "ReducerState",
                                 "A state of GradientReducer.save_state, by parameter.");
  state.def(nb::init<>(), "Makes an empty state.")
      .def_static("read", &read, "state"_a,
                  "Reads a state.\n\n"
                  "Args:\n"
                  "  state: Bytes of GradientReducer.save_state().\n\n"
                  "Raises:\n"
                  "  InvalidArgumentError: The bytes are not a state, or are damaged.")
      .def("write", &write, "Returns the bytes for GradientReducer.load_state().")
      .def_rw("ranks", &ReducerState::ranks, "Number of ranks.")
      .def_rw("rank", &ReducerState::rank, "The rank that saved the state.")
      .def_rw("step", &ReducerState::step, "Number of completed steps.")
      .def_rw("order", &ReducerState::order,
              "Indices of the parameters in sending order; empty if not learned yet.")
      .def_prop_ro("parameters", &parameters, "List of ParameterState.")
      .def("add", &add, "name"_a, "codec"_a, "count"_a, "residual_first"_a, "residual"_a, "owner"_a,
           "memory"_a,
           "Appends a parameter. Copies the values.\n\n"
           "Args:\n"
           "  name: Name of the parameter.\n"
           "  codec: Spec of the codec.\n"
           "  count: Number of values of the parameter.\n"
           "  residual_first: Index of the value at which the residual begins.\n"
           "  residual, owner, memory: 1-D float32 arrays, see ParameterState.");
  def_choice<&ReducerState::form>(state, "form");
  def_choice<&ReducerState::reduction>(state, "reduction");
}

}  // namespace tersor::python
