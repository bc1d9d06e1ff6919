// Binds the collectives for arrays. Calls release the GIL.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/call_options.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tersor::python {
namespace {

/// The transport, options and statistics of a call.
class Call {
 public:
  Call(nb::handle transport, const CallOptions& wanted)
      : transport_(nb::cast<Transport&>(transport)),
        options_(wanted.resolve(transport, statistics_, lock_)) {}

  /// Runs `collective(transport, options)` on the device of `array`.
  template <typename Span, typename Collective>
  CollectiveStatistics run(const Array<Span>& array, Collective&& collective) {
    options_.order = order_of(array.axes, array.shape);
    const kernels::DeviceScope scope(array.device);
    without_gil([&] { collective(transport_, options_); });
    return statistics_;
  }

 private:
  CollectiveStatistics statistics_;
  std::unique_lock<std::mutex> lock_;
  Transport& transport_;
  CollectiveOptions options_;
};

CollectiveStatistics allreduce_array(nb::handle transport, nb::handle gradient,
                                     const CallOptions& wanted, nb::handle stream) {
  const auto values =
      write_values(gradient, {.name = "gradient", .layout = Layout::kDense, .stream = stream});
  const StreamView queue = to_stream(stream, gradient, values.memory);
  return Call(transport, wanted).run(values, [&](Transport& ranks, const auto& options) {
    allreduce(ranks, values.span, options, queue);
  });
}

CollectiveStatistics broadcast_array(nb::handle transport, nb::handle array, int root,
                                     const CallOptions& wanted, nb::handle stream) {
  const auto values =
      write_values(array, {.name = "values", .layout = Layout::kDense, .stream = stream});
  const StreamView queue = to_stream(stream, array, values.memory);
  return Call(transport, wanted).run(values, [&](Transport& ranks, const auto& options) {
    broadcast(ranks, values.span, root, options, queue);
  });
}

/// An array of a call, and its name in messages.
struct Named {
  nb::handle array;
  const char* name;
};

using OfArrays = void(Transport&, ConstValueSpan, ValueSpan, const CollectiveOptions&, StreamView);

/// Runs a call with two arrays. If only the root needs an array, the array may be None on other
/// ranks.
CollectiveStatistics call_arrays(nb::handle transport, Named input, Named output,
                                 const CallOptions& wanted, nb::handle given,
                                 const std::function<OfArrays>& collective) {
  const Named& own_array = input.array.is_none() ? output : input;
  const nb::object stream = stream_of_call(given, own_array.array, own_array.name);
  const auto run = [&](const auto& first, ConstValueSpan from, ValueSpan to) {
    const StreamView queue = to_stream(stream, own_array.array, first.memory);
    return Call(transport, wanted).run(first, [&](Transport& ranks, const auto& options) {
      collective(ranks, from, to, options, queue);
    });
  };
  const auto write = [&] {
    return write_values(output.array, {.name = output.name, .stream = stream});
  };
  if (input.array.is_none()) {
    const auto result = write();
    return run(result, {}, result.span);
  }
  const auto values = read_values(input.array, {.name = input.name, .stream = stream});
  if (output.array.is_none()) return run(values, values.span, {});
  const auto result = write();
  check_same_device(values, result, output.name);
  return run(values, values.span, result.span);
}

CollectiveStatistics reduce_scatter_array(nb::handle transport, nb::handle input, nb::handle shard,
                                          const CallOptions& wanted, nb::handle stream) {
  return call_arrays(transport, {input, "input"}, {shard, "shard"}, wanted, stream,
                     static_cast<OfArrays*>(reduce_scatter));
}

CollectiveStatistics allgather_array(nb::handle transport, nb::handle shard, nb::handle output,
                                     const CallOptions& wanted, nb::handle stream) {
  return call_arrays(transport, {shard, "shard"}, {output, "output"}, wanted, stream, allgather);
}

/// Binds `reduce`, `gather` or `scatter`.
template <auto kCollective>
CollectiveStatistics rooted_array(nb::handle transport, nb::handle input, nb::handle output,
                                  int root, const CallOptions& wanted, nb::handle stream) {
  return call_arrays(
      transport, {input, "input"}, {output, "output"}, wanted, stream,
      [root](Transport& ranks, ConstValueSpan from, ValueSpan to, const CollectiveOptions& options,
             StreamView queue) { kCollective(ranks, from, to, root, options, queue); });
}

CollectiveStatistics all_to_all_array(nb::handle transport, nb::handle input, nb::handle output,
                                      std::size_t columns, const std::vector<std::size_t>& sent,
                                      const std::vector<std::size_t>& received,
                                      const CallOptions& wanted, nb::handle stream) {
  return call_arrays(transport, {input, "input"}, {output, "output"}, wanted, stream,
                     [&](Transport& ranks, ConstValueSpan from, ValueSpan to,
                         const CollectiveOptions& options, StreamView queue) {
                       all_to_all(ranks, from, to, columns, {sent, received}, options, queue);
                     });
}

/// Returns the docstring of a collective. `arrays` describes its own arguments, a line each.
std::string doc_of(std::string_view summary, std::string_view arrays) {
  return std::string(summary) + "\n\nArgs:\n  transport: Connects the ranks.\n" +
         std::string(arrays) +
         "  options: The CallOptions.\n"
         "  stream: Stream of arrays on a device; None: the current stream.\n\n"
         "Returns:\n"
         "  The CollectiveStatistics.\n\n"
         "Raises:\n"
         "  InvalidArgumentError: An argument is invalid on this rank.\n"
         "  TransportError: A rank failed, is late, or passed other arguments.";
}

constexpr std::string_view kRootedArguments =
    "  input, shard, output: Arrays; None is allowed where only the root needs the array.\n"
    "  root: The root's rank.\n";

void bind_rooted(nb::module_& module) {
  using namespace nb::literals;
  module.def("broadcast", &broadcast_array, "transport"_a, "values"_a, "root"_a, "options"_a,
             "stream"_a = nb::none(),
             doc_of("Sends the root's values to all ranks.",
                    "  values: Array, read on the root and overwritten on other ranks.\n"
                    "  root: Rank that sends.\n")
                 .c_str());
  const auto define = [&](const char* name, auto function, auto input, auto output,
                          const std::string& text) {
    const std::string doc = doc_of(text, kRootedArguments);
    module.def(name, function, "transport"_a, input, output, "root"_a, "options"_a,
               "stream"_a = nb::none(), doc.c_str());
  };
  define("reduce", &rooted_array<&tersor::reduce>, "input"_a, "output"_a.none(),
         "Sums (or averages) the inputs of all ranks on the root. `output` is the root's result.");
  define(
      "gather", &rooted_array<&tersor::gather>, "shard"_a, "output"_a.none(),
      "Collects the shards of all ranks in rank order on the root. `output` is the root's result.");
  define("scatter", &rooted_array<&tersor::scatter>, "input"_a.none(), "shard"_a,
         "Sends the r-th part of the root's input to rank r. `shard` is the result.");
}

void bind_collective_options(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Workspace>(module, "Workspace",
                        "Plans, buffers and threads that calls with equal arguments reuse. Only "
                        "one call at a time may use a workspace.\n\n"
                        "Args:\n"
                        "  threads: Number of codec threads; 0: one per core.")
      .def(nb::init<unsigned>(), "threads"_a = 1, "See the class.")
      .def_prop_ro("threads", &Workspace::threads, "Number of codec threads.");
  const auto keeps = nb::for_setter(nb::keep_alive<1, 2>());  // the options hold plain pointers
  nb::class_<CallOptions> options(module, "CallOptions", "Options of one collective call.");
  options.def(nb::init<>(), "Sets the defaults of all options.")
      .def_rw("codec", &CallOptions::codec, "Spec of the codec.")
      .def_rw("hosts", &CallOptions::host_of_rank,
              "Host number of each rank, for the hierarchical algorithm; empty: known.")
      .def_rw("dims", &CallOptions::grid, "Dimensions of the two-shot grid; empty: chosen.")
      .def_rw("error_growth", &CallOptions::error_growth,
              "Limit of a grid's squared error relative to one dimension; at least 1.")
      .def_rw("host_codec", &CallOptions::host_codec, "Codec within a host: none or bf16.")
      .def_rw("state", &CallOptions::feedback, nb::for_setter(nb::arg().none()), keeps,
              "The FeedbackState; None: no feedback.")
      .def_rw("workspace", &CallOptions::own_workspace, nb::for_setter(nb::arg().none()), keeps,
              "The Workspace; None: buffers live for one call.")
      .def_rw("tuner", &CallOptions::tuner, nb::for_setter(nb::arg().none()), keeps,
              "The Tuner of codec auto.")
      .def_rw("parameter", &CallOptions::parameter,
              "Number of the parameter; selects owners and random numbers.")
      .def_rw("seed", &CallOptions::seed, "Seed of stochastic rounding.")
      .def_rw("step", &CallOptions::step, "Step of stochastic rounding without a state.")
      .def_rw("chunk_count", &CallOptions::chunk_count,
              "Values per chunk; 0: the transport's default.");
  def_choice<&CallOptions::reduction>(options, "reduction", "\"sum\" or \"mean\".");
  def_choice<&CallOptions::algorithm>(options, "algorithm", "The algorithm, or \"auto\".");
  def_flag<&CallOptions::checksum, Checksum::kOff, Checksum::kOn>(
      options, "checksum", "True if frames have a checksum.");
  def_timeout<&CallOptions::timeout>(options, "timeout",
                                     "Seconds without an answer after which a rank is late.");
}

void bind_collective_statistics(nb::module_& module) {
  nb::class_<CollectiveStatistics>(module, "CollectiveStatistics", "Statistics of one call.")
      .def_prop_ro(
          "algorithm", [](const CollectiveStatistics& call) { return text_of(call.algorithm); },
          "The chosen algorithm.")
      .def_ro("chunks", &CollectiveStatistics::chunks, "Number of chunks.")
      .def_ro("gradient_bytes", &CollectiveStatistics::gradient_bytes, "Bytes of the values.")
      .def_ro("sent_bytes", &CollectiveStatistics::sent_bytes,
              "Bytes sent by this rank, as counted by the transport.")
      .def_ro("encode_seconds", &CollectiveStatistics::encode_seconds, "Seconds of encoding.")
      .def_ro("decode_seconds", &CollectiveStatistics::decode_seconds, "Seconds of decoding.")
      .def_ro("wire_seconds", &CollectiveStatistics::wire_seconds,
              "Seconds in which at least one message was under way.")
      .def_ro("seconds", &CollectiveStatistics::seconds,
              "Seconds of the call. On a device: seconds until the work was queued.")
      .def_ro("overflows", &CollectiveStatistics::overflows,
              "Number of finite values beyond the range of the sent type.");
}

}  // namespace

void bind_collectives(nb::module_& module) {
  using namespace nb::literals;
  bind_collective_statistics(module);
  bind_feedback(module);
  bind_collective_options(module);
  bind_rooted(module);
  module.def("allreduce", &allreduce_array, "transport"_a, "gradient"_a, "options"_a,
             "stream"_a = nb::none(),
             doc_of("Sums (or averages) arrays over all ranks, in place.",
                    "  gradient: Dense array, overwritten by the result.\n")
                 .c_str());
  module.def("reduce_scatter", &reduce_scatter_array, "transport"_a, "input"_a, "shard"_a,
             "options"_a, "stream"_a = nb::none(),
             doc_of("Sums (or averages) arrays over all ranks; each rank gets one part.",
                    "  input: Array with one part per rank.\n"
                    "  shard: This rank's part of the result.\n")
                 .c_str());
  module.def("allgather", &allgather_array, "transport"_a, "shard"_a, "output"_a, "options"_a,
             "stream"_a = nb::none(),
             doc_of("Collects the shards of all ranks on all ranks.",
                    "  shard: This rank's part.\n"
                    "  output: The parts of all ranks, in rank order.\n")
                 .c_str());
  module.def("all_to_all", &all_to_all_array, "transport"_a, "input"_a, "output"_a, "columns"_a,
             "sent"_a, "received"_a, "options"_a, "stream"_a = nb::none(),
             doc_of("Sends rows to each rank, and receives rows from each rank.",
                    "  input: Rows for rank 0, 1, …\n"
                    "  output: Rows from rank 0, 1, …\n"
                    "  columns: Number of values per row.\n"
                    "  sent: Number of rows for each rank.\n"
                    "  received: Number of rows from each rank.\n")
                 .c_str());
}

}  // namespace tersor::python
