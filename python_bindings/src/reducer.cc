// Binds the GradientReducer.
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/gradient_reducer.h"

#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tersor::python {
namespace {

void load_state(const ArrayReducer& self, const nb::bytes& state, std::uint64_t common) {
  const std::span bytes(static_cast<const std::byte*>(state.data()), state.size());
  without_gil([&] { self.reducer().load_state(bytes, common); });
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
                         "Statistics of one parameter, or of all parameters (`name` is empty). "
                         "Seconds and bytes are sums over `steps` steps.")
      .def_ro("name", &Statistics::name, "Name of the parameter; empty for all parameters.")
      .def_ro("codec", &Statistics::codec, "Spec of the codec.")
      .def_ro("reason", &Statistics::reason, "Why Tersor chose this codec.")
      .def_ro("codec_may_change", &Statistics::codec_may_change,
              "True if \"auto\" or a schedule chooses the codec. Another run may then use another "
              "codec.")
      .def_prop_ro(
          "algorithm", [](const Statistics& one) { return text_of(one.algorithm); },
          "The algorithm of the exchange.")
      .def_ro("steps", &Statistics::steps, "Number of completed steps.")
      .def_ro("gradient_bytes", &Statistics::gradient_bytes, "Bytes of the gradients.")
      .def_ro("sent_bytes", &Statistics::sent_bytes,
              "Bytes sent by this rank, as counted by the transport.")
      .def_ro("encode_seconds", &Statistics::encode_seconds, "Seconds of encoding.")
      .def_ro("decode_seconds", &Statistics::decode_seconds, "Seconds of decoding.")
      .def_ro("wire_seconds", &Statistics::wire_seconds,
              "Seconds in which messages were under way.")
      .def_ro("hidden_seconds", &Statistics::hidden_seconds,
              "The part of wire_seconds outside of wait().")
      .def_ro("exposed_seconds", &Statistics::exposed_seconds, "Seconds in wait().")
      .def_ro("relative_error", &Statistics::relative_error,
              "|sent - decoded| / |sent| of this rank's last encode, if measured.")
      .def_ro("steps_discarded", &Statistics::steps_discarded, "Number of discarded steps.")
      .def_ro("codec_changes", &Statistics::codec_changes,
              "Number of changes by \"auto\"; only for all parameters.")
      .def_ro("overflows", &Statistics::overflows,
              "Number of finite values beyond the range of the sent type.");
}

void bind_handle(nb::module_& module) {
  nb::class_<ReadyGradients>(module, "ReadyGradients",
                             "A handle of the gradients that one call made ready.")
      .def("test", &ReadyGradients::test,
           "Returns True once these gradients hold the result. Never waits.\n\n"
           "Raises:\n"
           "  Error: The error that ended the exchange.")
      .def("wait", &ReadyGradients::wait,
           "Waits for these gradients. Call wait() after flush(), or before flush() if the sending "
           "order is known, i.e. from the second step on.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The step must be flushed first.\n"
           "  Error: The error that ended the exchange.");
}

void bind_steps(nb::class_<ArrayReducer>& reducer) {
  using namespace nb::literals;
  reducer
      .def("add", &ArrayReducer::add, "name"_a, "like"_a,
           "Adds a parameter, before the first step or between two steps. All ranks add the same "
           "parameters in the same order between the same steps.\n\n"
           "Args:\n"
           "  name: Name of the parameter.\n"
           "  like: An array with the shape, strides, dtype and device of the gradients: float32, "
           "bfloat16 or float16. The values are not read.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The name exists, the array does not fit the transport, "
           "gradients of this step are ready, or a step was captured.")
      .def(
          "weigh", &weigh, "samples"_a,
          "Sets the sample weight of this rank's gradients (weighted=True). Call weigh() on all "
          "ranks in each step before the first ready(). The result is the mean over the samples of "
          "all ranks. Does not wait; the first ready() waits for all ranks' calls.\n\n"
          "Args:\n"
          "  samples: Number of samples of which this rank's gradients are means, 0 or more. 0: "
          "the gradients are ignored.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: weighted is False, `samples` is negative or not finite, or "
          "weigh() was called in this step.")
      .def("ready", &ArrayReducer::ready, "name"_a, "gradient"_a, "contribution"_a = "gradient",
           nb::keep_alive<0, 1>(),
           "Marks a gradient as complete, so that Tersor may send the gradient. Do not touch the "
           "gradient until the returned handle is done or wait() has returned.\n\n"
           "Args:\n"
           "  name: Name of the parameter.\n"
           "  gradient: A 1-D array, or an array with the shape and strides passed to add(). "
           "Overwritten by the result.\n"
           "  contribution: \"gradient\" (default); \"none\": this rank sends zeros and keeps the "
           "residual; \"gradient-unless-zero\": like \"none\" if all values are 0; "
           "\"globally-unused\", passed by all ranks: no rank has a gradient, and residuals do not "
           "change.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The gradient differs from the array passed to add(), overlaps "
           "an unfinished gradient, or was ready before in this step.")
      .def("add_sharded", &ArrayReducer::add_sharded, "name"_a, "like"_a, "shape"_a,
           "shard_count"_a,
           "Adds a parameter that is reduce-scattered: every rank receives a shard.\n\n"
           "Args:\n"
           "  name: Name of the parameter.\n"
           "  like: An array with the dtype and device of the gradients.\n"
           "  shape: Shape of the whole parameter.\n"
           "  shard_count: Values per shard, padding included: at least ceil(values / ranks).\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The shards are too small, or as in add().")
      .def("ready_sharded", &ArrayReducer::ready_sharded, "names"_a, "gradients"_a, "shards"_a,
           nb::keep_alive<0, 1>(),
           "Marks gradients of several reduce-scattered parameters as complete, see ready().\n\n"
           "Args:\n"
           "  names: Names of the parameters.\n"
           "  gradients: Arrays with the shards of all ranks, in the order of ranks.\n"
           "  shards: Arrays that receive this rank's shards of the result.")
      .def("ready_flat", &ArrayReducer::ready_flat, "names"_a, "gradients"_a,
           "contribution"_a = "gradient", nb::keep_alive<0, 1>(),
           "Marks the gradients of several parameters as complete, see ready().\n\n"
           "Args:\n"
           "  names: Names of the parameters.\n"
           "  gradients: A 1-D array with the gradients one after another.\n"
           "  contribution: As in ready(), for all of them.")
      .def("flush", &waiting<&GradientReducer::flush>,
           "Ends the step without waiting.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: A parameter was not ready.")
      .def("wait", &ArrayReducer::wait,
           "Ends the step and waits until every gradient holds the sum or mean.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: A parameter was not ready.\n"
           "  TransportError: A rank failed, is late, or made another call.\n"
           "  RanksLostError: A rank of an elastic reducer failed.")
      .def("progress", &waiting<&GradientReducer::progress>,
           "Makes progress if no thread of the reducer does (progress=\"caller\"). Never waits.")
      .def("relearn_order", &waiting<&GradientReducer::relearn_order>,
           "Makes the next step learn the sending order from rank 0 again.");
}

/// Binds the functions of elastic reducers.
void bind_losses(nb::class_<ArrayReducer>& reducer) {
  reducer
      .def("resume", &waiting<&GradientReducer::resume>,
           "Continues with the remaining ranks after RanksLostError. All remaining ranks call "
           "resume(). Their residuals stay. The current step starts again.\n\n"
           "Raises:\n"
           "  RanksLostError: Another rank was lost in the meantime; call resume() again.\n"
           "  InvalidArgumentError: Too few ranks remain, no rank was lost, or the options contain "
           "dims or hosts.")
      .def("check_faults", &waiting<&GradientReducer::check_faults>,
           "Raises this reducer's error after a TransportError on another channel of the same "
           "ranks. Returns if no fault is known.\n\n"
           "Raises:\n"
           "  RanksLostError: A rank of an elastic reducer failed.\n"
           "  TransportError: A rank of another reducer failed.")
      .def(
          "hear_fault",
          [](const ArrayReducer& self) {
            warn_renamed("GradientReducer.hear_fault", "GradientReducer.check_faults");
            waiting<&GradientReducer::check_faults>(self);
          },
          "The former name of `check_faults`.")
      .def_prop_ro(
          "ranks", [](const ArrayReducer& self) { return self.reducer().transport().ranks(); },
          "Number of ranks; after resume() the number of remaining ranks.")
      .def(
          "channel",
          [](const ArrayReducer& self) {
            return make_patient([&] { return self.reducer().transport().channel(); });
          },
          nb::keep_alive<0, 1>(),
          "Returns a transport of the current ranks with separate messages. A collective call. "
          "Make a new channel after resume().");
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
          "Multiplies residuals, e.g. when a loss scale changes by `factor`.\n\n"
          "Args:\n"
          "  factor: A finite number; 0 also clears NaNs.\n"
          "  names: Names of parameters; None: all parameters.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: The factor is not finite, or a name was not added.")
      .def(
          "discard_step",
          of_names([](auto& reducer, auto&... names) { reducer.discard_step(names...); }),
          "names"_a = nb::none(),
          "Restores the residuals from before the last step (transactional=True only). After a "
          "call of accept_steps(), restores the residuals from its last call.\n\n"
          "Args:\n"
          "  names: Names of parameters; parameters without a step to discard do not change. None: "
          "all parameters.\n\n"
          "Raises:\n"
          "  InvalidArgumentError: transactional is False, or there is no step to discard.")
      .def("accept_steps",
           of_names([](auto& reducer, auto&... names) { reducer.accept_steps(names...); }),
           "names"_a = nb::none(),
           "Accepts the steps since the last call as final (transactional=True only). From the "
           "first call on, discard_step() discards all later steps together. All ranks make the "
           "same calls.\n\n"
           "Args:\n"
           "  names: Names of parameters; None: all parameters.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: transactional is False, or the reducer is elastic.")
      .def("save_state", &saved<&GradientReducer::save_state>,
           "Returns the state of this rank. A run with the same number of ranks continues bit for "
           "bit from this state.")
      .def("save_portable_state", &saved<&GradientReducer::save_portable_state>,
           "Returns the sum of all ranks' states, for any number of ranks. A collective call.")
      .def("load_state", &load_state, "state"_a, "common"_a = 0,
           "Loads a state.\n\n"
           "Args:\n"
           "  state: Result of save_state() or save_portable_state().\n"
           "  common: Hash of the caller's own part of the save, if equal on all ranks. The next "
           "step raises TransportError if ranks loaded different states or hashes.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The state does not fit: other parameters, counts, codecs or "
           "ranks, or damaged. Nothing changed.");
}

}  // namespace

void bind_reducer(nb::module_& module) {
  using namespace nb::literals;
  bind_reducer_statistics(module);
  bind_handle(module);
  bind_reducer_options(module);
  nb::class_<ArrayReducer> reducer(module, "GradientReducer",
                                   "Reduces gradients over all ranks in the background.");
  reducer.def(nb::init<Transport&, const ReducerOptions&>(), "transport"_a, "options"_a,
              nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());  // the options keep the Tuner alive
  bind_steps(reducer);
  bind_state(reducer);
  bind_losses(reducer);
  reducer
      .def("statistics", &waiting<&GradientReducer::statistics>,
           "Returns the statistics of all parameters together. Waits for flushed steps.")
      .def("statistics_so_far", &waiting<&GradientReducer::statistics_so_far>,
           "Returns the statistics of the completed steps. Any thread may call it; waits for no "
           "step.")
      .def("parameter_statistics", &waiting<&GradientReducer::parameter_statistics>,
           "Returns the statistics of each parameter, in the order of add().")
      .def("residual_norms", &waiting<&GradientReducer::residual_norms>,
           "Returns the Euclidean norm of each parameter's residual, in the order of add(). Reads "
           "all residuals.")
      .def("write_trace", &waiting<&GradientReducer::write_trace>,
           "Writes the trace now. By default, the reducer writes the trace when it ends.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The option `trace` is empty.\n"
           "  Error: Writing failed.")
      .def("reset_statistics", &waiting<&GradientReducer::reset_statistics>,
           "Sets all statistics to zero.")
      .def("settled", &waiting<&GradientReducer::settled>,
           "Returns True if \"auto\" tries no other codec for now.")
      .def("explain", &waiting<&GradientReducer::explain>,
           "Returns the decisions and their reasons as text, one line per parameter.")
      .def("explain_choice", &waiting<&GradientReducer::explain_choice>,
           "Returns the measurements, predictions and trials of \"auto\"; empty without \"auto\".");
}

}  // namespace tersor::python
