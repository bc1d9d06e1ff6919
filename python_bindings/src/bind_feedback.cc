// Binds FeedbackState, and functions of its sizes.
#include "comm/collectives/fold.h"
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/call_options.h"
#include "python_bindings/src/choices.h"

#include <tersor/collectives.h>

#include <new>
#include <string>
#include <string_view>

namespace tersor::python {
namespace {

/// The collectives with error feedback.
enum class Fed { kAllreduce, kReduceScatter, kAllgather };

}  // namespace

template <>
inline constexpr Texts<3> kChoice<Fed> = {"collective",
                                          {"allreduce", "reduce_scatter", "allgather"}};

namespace {

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
  const kernels::DeviceScope scope(values.device);
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
  const ParameterFeedback feedback{.owned = grid.owned({0, into.size()}, rank, options.parameter,
                                                       make_codec(options.codec)->traits().unit)};
  const float adds = options.reduction == Reduction::kMean ? static_cast<float>(ranks) : 1.0f;
  fold_owner(from, feedback, scales_over(grid, adds), {into});
}

}  // namespace

void bind_feedback(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<FeedbackState> state(module, "FeedbackState",
                                  "The residuals of one parameter for one collective.");
  state
      .def("__init__", &make_feedback, "transport"_a, "like"_a, "options"_a, "dtype"_a,
           "collective"_a,
           "Allocates residuals of zero.\n\n"
           "Args:\n"
           "  transport: Connects the ranks.\n"
           "  like: An array with the parameter's size and device.\n"
           "  options: The CallOptions of the calls.\n"
           "  dtype: Dtype of the residuals: \"f32\", \"bf16\" or \"f16\".\n"
           "  collective: \"allreduce\", \"reduce_scatter\" or \"allgather\".")
      .def("__init__", &make_feedback_of, "residual"_a, "words"_a, "owner"_a = nb::none(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
           "Uses arrays of the caller. The state keeps the arrays alive.\n\n"
           "Args:\n"
           "  residual: One residual per value sent by this rank.\n"
           "  words: The bytes of FRESH_STATE_WORDS, aligned to 8 bytes.\n"
           "  owner: For two-shot: owned_count(...) residuals.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: The arrays are on different devices, or `words` has another "
           "size or alignment.")
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

}  // namespace tersor::python
