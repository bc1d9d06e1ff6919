// Binds the collectives for arrays. Calls release the GIL.
#include "comm/collectives/fold.h"
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/feedback_state.h"
#include "python_bindings/src/waiting.h"

#include <tersor/auto.h>
#include <tersor/collectives.h>
#include <tersor/threads.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::python {
namespace {

/// The collectives with error feedback.
enum class Fed { kAllreduce, kReduceScatter, kAllgather };

}  // namespace

template <>
inline constexpr Texts<3> kChoice<Fed> = {"collective",
                                          {"allreduce", "reduce_scatter", "allgather"}};

namespace {

/// Plans, buffers and threads, reused by calls with equal arguments. Destroy the workspace before
/// its transports.
class Workspace {
 public:
  explicit Workspace(unsigned threads) : threads_(threads) {}

  /// Sets the workspace and threads of a call over `transport`. Needs the GIL.
  void bind(CollectiveOptions& options, nb::handle transport) {
    transports_.add(transport);
    options.workspace = plans_.get();
    options.threads = &threads_;
  }
  unsigned threads() const { return threads_.count(); }

 private:
  nb::set transports_;  // declared first, so destroyed last
  std::shared_ptr<CollectiveWorkspace> plans_ = make_without_gil<CollectiveWorkspace>();
  Threads threads_;
};

/// The options of a call.
struct CallOptions : CollectiveOptions {
  std::vector<int> host_of_rank, grid;
  FeedbackState* feedback = nullptr;
  Workspace* own_workspace = nullptr;

  /// Returns the library's options, valid as long as this object. Needs the GIL.
  CollectiveOptions resolve(nb::handle transport, CollectiveStatistics& filled) const {
    CollectiveOptions options = *this;
    options.hosts = host_of_rank;
    options.dims = grid;
    options.statistics = &filled;
    if (feedback != nullptr) options.state = &feedback->state();
    if (own_workspace != nullptr) own_workspace->bind(options, transport);
    return options;
  }
};

/// The transport, options and statistics of a call.
class Call {
 public:
  Call(nb::handle transport, const CallOptions& wanted)
      : transport_(nb::cast<Transport&>(transport)),
        options_(wanted.resolve(transport, statistics_)) {}

  /// Runs `collective(transport, options)` on the device of `array`.
  template <typename Span, typename Collective>
  CollectiveStatistics run(const Array<Span>& array, Collective&& collective) {
    options_.order = order_of(array.axes);
    const DeviceScope scope(array);
    without_gil([&] { collective(transport_, options_); });
    return statistics_;
  }

 private:
  CollectiveStatistics statistics_;
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
                                 const CallOptions& wanted, nb::handle stream,
                                 const std::function<OfArrays>& collective) {
  const auto run = [&](const auto& first, ConstValueSpan from, ValueSpan to, nb::handle own) {
    const StreamView queue = to_stream(stream, own, first.memory);
    return Call(transport, wanted).run(first, [&](Transport& ranks, const auto& options) {
      collective(ranks, from, to, options, queue);
    });
  };
  const auto write = [&] {
    return write_values(output.array, {.name = output.name, .stream = stream});
  };
  if (input.array.is_none()) {
    const auto result = write();
    return run(result, {}, result.span, output.array);
  }
  const auto values = read_values(input.array, {.name = input.name, .stream = stream});
  if (output.array.is_none()) return run(values, values.span, {}, input.array);
  const auto result = write();
  check_same_device(values, result, output.name);
  return run(values, values.span, result.span, input.array);
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

void bind_rooted(nb::module_& module) {
  using namespace nb::literals;
  module.def("broadcast", &broadcast_array, "transport"_a, "values"_a, "root"_a, "options"_a,
             "stream"_a = nb::none());
  const auto define = [&](const char* name, auto function, auto input, auto output) {
    module.def(name, function, "transport"_a, input, output, "root"_a, "options"_a,
               "stream"_a = nb::none());
  };
  define("reduce", &rooted_array<&tersor::reduce>, "input"_a, "output"_a.none());
  define("gather", &rooted_array<&tersor::gather>, "shard"_a, "output"_a.none());
  define("scatter", &rooted_array<&tersor::scatter>, "input"_a.none(), "shard"_a);
}

void bind_collective_options(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Workspace>(module, "Workspace",
                        "Plans, buffers and threads that calls with equal arguments reuse. Only "
                        "one call at a time may use a workspace.\n\n"
                        "Args:\n"
                        "  threads: Number of codec threads; 0: one per core.")
      .def(nb::init<unsigned>(), "threads"_a = 1)
      .def_prop_ro("threads", &Workspace::threads, "Number of codec threads.");
  const auto keeps = nb::for_setter(nb::keep_alive<1, 2>());  // the options hold plain pointers
  nb::class_<CallOptions> options(module, "CallOptions");
  options.def(nb::init<>())
      .def_rw("codec", &CallOptions::codec)
      .def_rw("hosts", &CallOptions::host_of_rank)
      .def_rw("dims", &CallOptions::grid)
      .def_rw("error_growth", &CallOptions::error_growth)
      .def_rw("host_codec", &CallOptions::host_codec)
      .def_rw("state", &CallOptions::feedback, nb::for_setter(nb::arg().none()), keeps)
      .def_rw("workspace", &CallOptions::own_workspace, nb::for_setter(nb::arg().none()), keeps)
      .def_rw("tuner", &CallOptions::tuner, nb::for_setter(nb::arg().none()), keeps)
      .def_rw("parameter", &CallOptions::parameter)
      .def_rw("seed", &CallOptions::seed)
      .def_rw("step", &CallOptions::step)
      .def_rw("chunk_count", &CallOptions::chunk_count);
  def_choice<&CallOptions::reduction>(options, "reduction");
  def_choice<&CallOptions::algorithm>(options, "algorithm");
  def_flag<&CallOptions::checksum, Checksum::kOff, Checksum::kOn>(options, "checksum");
  def_timeout<&CallOptions::timeout>(options, "timeout");
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

/// Returns the feedback sizes for a call with `count` values. Outside a hierarchy, all collectives
/// have equal sizes.
FeedbackCounts feedback_counts(std::size_t count, const Transport& transport,
                               const CallOptions& options, Fed collective) {
  const int rank = transport.rank(), ranks = transport.ranks();
  const CodecTraits traits =
      options.codec == kAutoCodec ? CodecTraits{} : make_codec(options.codec)->traits();
  if (options.algorithm != Algorithm::kHierarchical)
    return {count, owned_count(count, rank, ranks, options.parameter, traits.unit, options.grid,
                               options.error_growth)};
  if (collective == Fed::kAllgather) return {count, 0};
  const auto hosts = options.host_of_rank.empty() ? transport.hosts() : options.host_of_rank;
  if (collective == Fed::kReduceScatter) return {scattered_count(count, hosts), 0};
  return {encoded_count(count, rank, hosts, options.parameter, traits.unit),
          owned_count(count, rank, hosts, options.parameter, traits.unit, options.error_growth)};
}

void make_feedback(FeedbackState* state, const Transport& transport, nb::handle like,
                   const CallOptions& options, std::string_view dtype,
                   std::string_view collective) {
  const auto values =
      read_values(like, {.name = "like", .layout = Layout::kDense, .use = Use::kShape});
  const FeedbackCounts counts =
      feedback_counts(values.span.count(), transport, options, parse_choice<Fed>(collective));
  const DeviceScope scope(values);
  new (state) FeedbackState(counts, parse_choice<Dtype>(dtype), values.memory);
}

void make_feedback_of(FeedbackState* state, nb::handle residual, nb::handle words,
                      nb::handle owner) {
  const auto values = write_values(residual, {.name = "residual"});
  Array<ValueSpan> owned;
  if (!owner.is_none()) {
    owned = write_values(owner, {.name = "owner"});
    check_same_device(values, owned, "owner");
  }
  const auto bytes = write_bytes(words, {.name = "words"});
  if (bytes.span.size() != sizeof(StateWords))
    throw InvalidArgumentError("words has " + std::to_string(bytes.span.size()) + " bytes; pass " +
                               std::to_string(sizeof(StateWords)) + ", as in FRESH_STATE_WORDS");
  check_same_device(values, bytes, "words");
  if (reinterpret_cast<std::uintptr_t>(bytes.span.data()) % alignof(StateWords) != 0)
    throw InvalidArgumentError(
        "words is not aligned to 8 bytes; pass an array aligned like an int64");
  new (state)
      FeedbackState(values.span, owned.span, reinterpret_cast<StateWords*>(bytes.span.data()));
}

std::size_t owned_by(std::size_t count, int rank, int ranks, const CallOptions& options) {
  return owned_count(count, rank, ranks, options.parameter,
                     make_codec(options.codec)->traits().unit, options.grid, options.error_growth);
}

/// Both arrays are f32 in host memory.
void fold_owner_into(nb::handle owner, nb::handle residual, int rank, int ranks,
                     const CallOptions& options) {
  const auto owned = read_values(owner, {.name = "owner"});
  const auto values = write_values(residual, {.name = "residual"});
  const auto from = host_floats(owned, "owner");
  const auto into = host_floats(values, "residual");
  const std::size_t expected = owned_by(into.size(), rank, ranks, options);
  if (from.size() != expected)
    throw InvalidArgumentError("owner has " + std::to_string(from.size()) + " values; of " +
                               std::to_string(into.size()) + " values rank " +
                               std::to_string(rank) + " of " + std::to_string(ranks) +
                               " ranks owns " + std::to_string(expected));
  const Grid grid = Grid::of(options.grid, ranks, options.error_growth);
  const ExchangeParameter param{.owned = grid.owned({0, into.size()}, rank, options.parameter,
                                                    make_codec(options.codec)->traits().unit)};
  const float adds = options.reduction == Reduction::kMean ? static_cast<float>(ranks) : 1.0f;
  fold_owner(from, param, owed_over(grid, adds), {into});
}

void bind_feedback(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<FeedbackState> state(module, "FeedbackState");
  state
      .def("__init__", &make_feedback, "transport"_a, "like"_a, "options"_a, "dtype"_a,
           "collective"_a)
      .def("__init__", &make_feedback_of, "residual"_a, "words"_a, "owner"_a = nb::none(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
           "Uses arrays of the caller. The state keeps the arrays alive.\n\n"
           "Args:\n"
           "  residual: One residual per value sent by this rank.\n"
           "  words: The bytes of FRESH_STATE_WORDS, aligned to 8 bytes.\n"
           "  owner: For two-shot: owned_count(...) residuals.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The arrays are on different devices, or `words` has another "
           "size "
           "or alignment.")
      .def_prop_ro("bytes", &FeedbackState::bytes, "Bytes of memory owned by the state.");
  module.def("owned_count", &owned_by, "count"_a, "rank"_a, "ranks"_a, "options"_a,
             "Returns the number of values that a rank reduces in a two-shot allreduce.\n\n"
             "Args:\n"
             "  count: Number of values of the allreduce.\n"
             "  rank: The rank.\n"
             "  ranks: Number of ranks.\n"
             "  options: Options of the call.");
  module.def("fold_owner", &fold_owner_into, "owner"_a, "residual"_a, "rank"_a, "ranks"_a,
             "options"_a,
             "Adds a rank's owner residual to the rank's sender residual after a two-shot "
             "allreduce, so that another group of ranks can continue.\n\n"
             "Args:\n"
             "  owner: float32 values in host memory, owned_count(...) of them.\n"
             "  residual: float32 values in host memory, one per value; changed in place.\n"
             "  rank: The rank in the allreduce.\n"
             "  ranks: Number of ranks of the allreduce.\n"
             "  options: Options of the allreduce.\n\n"
             "Raises:\n"
             "  InvalidArgumentError: `owner` has another number of values.");
  const StateWords fresh;
  module.attr("FRESH_STATE_WORDS") = nb::bytes(&fresh, sizeof fresh);
}

}  // namespace

void bind_collectives(nb::module_& module) {
  using namespace nb::literals;
  bind_collective_statistics(module);
  bind_feedback(module);
  bind_collective_options(module);
  bind_rooted(module);
  module.def("allreduce", &allreduce_array, "transport"_a, "gradient"_a, "options"_a,
             "stream"_a = nb::none());
  module.def("reduce_scatter", &reduce_scatter_array, "transport"_a, "input"_a, "shard"_a,
             "options"_a, "stream"_a = nb::none());
  module.def("allgather", &allgather_array, "transport"_a, "shard"_a, "output"_a, "options"_a,
             "stream"_a = nb::none());
  module.def("all_to_all", &all_to_all_array, "transport"_a, "input"_a, "output"_a, "columns"_a,
             "sent"_a, "received"_a, "options"_a, "stream"_a = nb::none());
}

}  // namespace tersor::python
