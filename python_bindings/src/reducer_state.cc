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
  nb::class_<ParameterState>(module, "ParameterState", "What a state holds of one parameter.")
      .def_prop_ro("name", field(&Parameter::name))
      .def_prop_ro("codec", field(&Parameter::codec))
      .def_prop_ro("count", field(&Parameter::count), "Values of the parameter.")
      .def_prop_ro("residual_first", field(&Parameter::residual_first),
                   "Value of the parameter at which the residual begins.")
      .def_prop_ro("residual", &view_of<&Parameter::residual>,
                   "f32, a view: of what this rank sends, or the sum over ranks.")
      .def_prop_ro("owner", &view_of<&Parameter::owner>,
                   "f32, a view: of the part whose sum this rank sends on.")
      .def_prop_ro("memory", &view_of<&Parameter::memory>,
                   "f32, a view: the codec's own, from which it starts warm; empty: it has none.")
      .def_prop_ro("longest_residual", field(&Parameter::longest_residual),
                   "Values of the longest `residual` of any rank.")
      .def_prop_ro("longest_owner", field(&Parameter::longest_owner));
}

}  // namespace

void bind_reducer_state(nb::module_& module) {
  using namespace nb::literals;
  bind_parameter(module);
  nb::class_<ReducerState> state(module, "ReducerState",
                                 "What `GradientReducer.save_state` wrote, by parameter.");
  state.def(nb::init<>())
      .def_static("read", &read, "state"_a, "Raises InvalidArgument where it is none, or damaged.")
      .def("write", &write, "As `GradientReducer.load_state` takes it.")
      .def_rw("ranks", &ReducerState::ranks)
      .def_rw("rank", &ReducerState::rank)
      .def_rw("step", &ReducerState::step)
      .def_rw("order", &ReducerState::order, "Of sending; empty: not learned yet.")
      .def_prop_ro("parameters", &parameters)
      .def("add", &add, "name"_a, "codec"_a, "count"_a, "residual_first"_a, "residual"_a, "owner"_a,
           "memory"_a, "Appends a parameter; its values are copied.");
  def_choice<&ReducerState::form>(state, "form");
  def_choice<&ReducerState::reduction>(state, "reduction");
}

}  // namespace tersor::python
