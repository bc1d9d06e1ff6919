// Binds the GradientReducer.
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/gradient_reducer.h"

#include <tersor/reducer.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tersor::python {
namespace {

void load_state(const ArrayReducer& self, const nb::bytes& state) {
  const std::span bytes(static_cast<const std::byte*>(state.data()), state.size());
  without_gil([&] { self.reducer().load_state(bytes); });
}

void weigh(const ArrayReducer& self, double samples) {
  without_gil([&] { self.reducer().weigh(samples); });
}

/// Wraps a blocking member of the reducer. The call releases the GIL.
template <auto kMember>
decltype(auto) waiting(const ArrayReducer& self) {
  return without_gil([&] { return (self.reducer().*kMember)(); });
}

/// Wraps a blocking member that returns a state.
template <auto kMember>
nb::bytes saved(const ArrayReducer& self) {
  const std::vector<std::byte> state = waiting<kMember>(self);
  return nb::bytes(state.data(), state.size());
}

using Names = std::optional<std::vector<std::string>>;

/// Wraps `call(reducer, names)`, or `call(reducer)` for all parameters.
template <typename Call>
auto of_names(Call call) {
  return [call](const ArrayReducer& self, const Names& names) {
    without_gil([&] {
      if (names.has_value()) return call(self.reducer(), *names);
      call(self.reducer());
    });
  };
}

void bind_reducer_statistics(nb::module_& module) {
  using Statistics = ReducerStatistics;
  nb::class_<Statistics>(module, "ReducerStatistics",
                         "What happened to one parameter, or to all (`name` is empty). Seconds and "
                         "bytes are sums over `steps` steps.")
      .def_ro("name", &Statistics::name, "Name of the parameter; empty for all.")
      .def_ro("codec", &Statistics::codec, "Spec of the codec.")
      .def_ro("reason", &Statistics::reason, "Why this codec was chosen.")
      .def_ro("codec_may_change", &Statistics::codec_may_change,
              "Whether \"auto\" or a schedule chooses the codec, so that another run may have "
              "another.")
      .def_prop_ro(
          "algorithm", [](const Statistics& one) { return text_of(one.algorithm); },
          "Name of the algorithm.")
      .def_ro("steps", &Statistics::steps, "Number of steps.")
      .def_ro("gradient_bytes", &Statistics::gradient_bytes, "Uncompressed bytes.")
      .def_ro("sent_bytes", &Statistics::sent_bytes, "As the transport counts them.")
      .def_ro("encode_seconds", &Statistics::encode_seconds, "Time of encoding.")
      .def_ro("decode_seconds", &Statistics::decode_seconds, "Time of decoding.")
      .def_ro("wire_seconds", &Statistics::wire_seconds, "Time with a message in transfer.")
      .def_ro("hidden_seconds", &Statistics::hidden_seconds,
              "Of wire_seconds, while nobody waited.")
      .def_ro("exposed_seconds", &Statistics::exposed_seconds, "In which somebody waited.")
      .def_ro("relative_error", &Statistics::relative_error,
              "|sent - decoded| / |sent| of this rank's last encode, where it was measured.")
      .def_ro("steps_discarded", &Statistics::steps_discarded, "Number of discarded steps.")
      .def_ro("codec_changes", &Statistics::codec_changes,
              "Times that \"auto\" went another way; of all together only.")
      .def_ro("overflows", &Statistics::overflows,
              "Values that were finite and left the range of the wire's type.");
}

void bind_handle(nb::module_& module) {
  nb::class_<ReadyGradients>(module, "ReadyGradients",
                             "What one call made ready, in the step under way.")
      .def("test", &ReadyGradients::test, "True once all of it holds the result. Never waits.")
      .def("wait", &ReadyGradients::wait,
           "Waits for this alone, once its step was flushed, or before that where the order of "
           "sending is known; raises what ended the exchange.");
}

void bind_steps(nb::class_<ArrayReducer>& reducer) {
  using namespace nb::literals;
  reducer
      .def("add", &ArrayReducer::add, "name"_a, "like"_a,
           "Adds a parameter whose gradients will be arrays like this one, which itself is used "
           "for nothing but its shape, strides, dtype and place. All ranks add the same, in the "
           "same order, before the first step or between the same two.")
      .def(
          "weigh", &weigh, "samples"_a,
          "Before a step's first gradient is ready, on all ranks in each step (weighted=True): "
          "this "
          "rank's gradients are means over so many samples, and what arrives is the mean over all. "
          "0: they are not looked at. Does not wait; the first `ready` does.")
      .def("ready", &ArrayReducer::ready, "name"_a, "gradient"_a, "contribution"_a = "gradient",
           nb::keep_alive<0, 1>(),
           "The gradient is there, flat or with shape and strides of what was added: it may be "
           "sent from now on, and is left alone until the handle is done or `wait` returned. "
           "`contribution`: \"none\" sends zeros and keeps the residual; "
           "\"gradient-unless-zero\" does so where the gradient is nothing but zeros; "
           "\"nowhere\", said by all ranks, leaves all alone that is kept of the parameter.")
      .def("add_sharded", &ArrayReducer::add_sharded, "name"_a, "like"_a, "shape"_a,
           "shard_count"_a,
           "Adds a parameter of this shape of which every rank gets a shard of so many values, "
           "padding included. Of `like` the dtype and the place count.")
      .def("ready_sharded", &ArrayReducer::ready_sharded, "names"_a, "gradients"_a, "shards"_a,
           nb::keep_alive<0, 1>(),
           "As `ready` for several of those: whole gradients, rank behind rank, and where this "
           "rank's shards of the result go.")
      .def("ready_flat", &ArrayReducer::ready_flat, "names"_a, "gradients"_a,
           "contribution"_a = "gradient", nb::keep_alive<0, 1>(),
           "As `ready` for several parameters whose gradients stand one after another.")
      .def("flush", &waiting<&GradientReducer::flush>, "Ends the step without waiting.")
      .def("wait", &ArrayReducer::wait,
           "Ends the step and waits: every gradient is the sum or mean now.")
      .def("progress", &waiting<&GradientReducer::progress>,
           "Moves what is under way, where no thread does. Never waits.")
      .def("relearn_order", &waiting<&GradientReducer::relearn_order>,
           "The next step learns the order of sending again, from rank 0.");
}

/// Binds the functions of elastic reducers.
void bind_losses(nb::class_<ArrayReducer>& reducer) {
  reducer
      .def("resume", &waiting<&GradientReducer::resume>,
           "After RanksLost: goes on with those who are left, who all call it, with what they owe "
           "by error feedback. The step under way begins anew. Raises RanksLost where one more was "
           "lost meanwhile, InvalidArgument where too few are left.")
      .def("hear_fault", &waiting<&GradientReducer::check_faults>,
           "After a TransportError on another channel of its ranks: raises this reducer's, of an "
           "elastic one RanksLost. Returns where no fault is known.")
      .def_prop_ro(
          "ranks", [](const ArrayReducer& self) { return self.reducer().transport().ranks(); },
          "How many it reduces over: after `resume` those who are left.")
      .def(
          "channel",
          [](const ArrayReducer& self) {
            return make_patient([&] { return self.reducer().transport().channel(); });
          },
          nb::keep_alive<0, 1>(),
          "These ranks, with messages of their own; a collective call. After a later `resume` make "
          "another one.");
}

void bind_state(nb::class_<ArrayReducer>& reducer) {
  using namespace nb::literals;
  reducer
      .def(
          "scale_residuals",
          [](const ArrayReducer& self, float factor, const Names& names) {
            of_names([&](auto& reducer, auto&... some) {
              reducer.scale_residuals(factor, some...);
            })(self, names);
          },
          "factor"_a, "names"_a = nb::none(),
          "When a loss scale changes by `factor`; of all parameters, or of these alone.")
      .def(
          "discard_step",
          of_names([](auto& reducer, auto&... names) { reducer.discard_step(names...); }),
          "names"_a = nb::none(),
          "Brings back the residuals from before the last step (transactional=True only), or, once "
          "accept_steps was called, from before all steps since its last call. With `names`, for "
          "these parameters alone; parameters without a step to discard are left alone.")
      .def(
          "accept_steps",
          of_names([](auto& reducer, auto&... names) { reducer.accept_steps(names...); }),
          "names"_a = nb::none(),
          "The steps since the last call are final (transactional=True only), of all parameters or "
          "of these alone. From the first call on, discard_step takes back all later steps "
          "together.")
      .def("save_state", &saved<&GradientReducer::save_state>,
           "This rank's own: the same run goes on bit for bit from it.")
      .def("save_portable_state", &saved<&GradientReducer::save_portable_state>,
           "The sum over ranks (a collective call): for any number of ranks.")
      .def("load_state", &load_state, "state"_a,
           "Loads either. Raises InvalidArgument that names what does not fit.");
}

}  // namespace

void bind_reducer(nb::module_& module) {
  using namespace nb::literals;
  bind_reducer_statistics(module);
  bind_handle(module);
  bind_reducer_options(module);
  nb::class_<ArrayReducer> reducer(module, "GradientReducer");
  reducer.def(nb::init<Transport&, const ReducerOptions&>(), "transport"_a, "options"_a,
              nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());  // the options keep the Tuner alive
  bind_steps(reducer);
  bind_state(reducer);
  bind_losses(reducer);
  reducer.def("statistics", &waiting<&GradientReducer::statistics>, "Of all parameters together.")
      .def("statistics_so_far", &waiting<&GradientReducer::statistics_so_far>,
           "The same of the steps that are complete. From any thread; waits for no step.")
      .def("parameter_statistics", &waiting<&GradientReducer::parameter_statistics>,
           "Of each parameter, in the order in which they were added.")
      .def("residual_norms", &waiting<&GradientReducer::residual_norms>,
           "The Euclidean norm of what error feedback keeps of each parameter, in that order: a "
           "pass over all residuals.")
      .def("write_trace", &waiting<&GradientReducer::write_trace>,
           "Writes the options' `trace` now: without, at the reducer's end.")
      .def("reset_statistics", &waiting<&GradientReducer::reset_statistics>,
           "Sets all statistics to zero.")
      .def("settled", &waiting<&GradientReducer::settled>,
           "Whether \"auto\" tries nothing, for now.")
      .def("explain", &waiting<&GradientReducer::explain>, "What was decided and why, as text.")
      .def("explain_choice", &waiting<&GradientReducer::explain_choice>,
           "What \"auto\" measured, predicted and tried; empty where it was not asked.");
}

}  // namespace tersor::python
