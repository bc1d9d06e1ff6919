#include "comm/reducer/parameters.h"

#include "comm/collectives/bind.h"
#include "comm/collectives/choose.h"
#include "comm/collectives/fold.h"
#include "comm/collectives/host_copy.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tersor {
namespace {

unsigned generations(const ReducerOptions& options) {
  const bool two = options.transactional == Transactional::kOn || options.elastic == Elastic::kOn;
  return two ? 2 : 1;
}

/// The maximum number of values in the codec's memory over all codecs of a schedule.
std::size_t max_memory(const ReducerParameter& own, const ExchangeParameter& param) {
  std::size_t largest = memory_count(param);
  for (const RulePhase& phase : own.choice.phases)
    largest = std::max(largest, memory_count(param, *phase.codec));
  return largest;
}

}  // namespace

const RulePhase& ReducerParameter::phase(std::uint32_t step) const {
  const auto later = std::ranges::upper_bound(choice.phases, step, {}, &RulePhase::from_step);
  return *std::prev(later);
}

StateRanges feedback_ranges(const ExchangeContext& context, const ReducerParameter& own,
                            const ExchangeParameter& param, int rank) {
  StateRanges ranges = state_ranges(context.ranks, param, rank);
  const bool feeds_back = param.codec->has_feedback();
  const bool scatters = param.collective == Collective::kReduceScatter;
  if (!feeds_back) ranges.encoded.count = 0;
  if (!feeds_back || scatters || !own.may_use_two_shot()) ranges.owned = {};
  return ranges;
}

ResidualScales residual_scales(const ExchangeContext& context, const ExchangeParameter& param) {
  return context.call.reduction == Reduction::kSum ? ResidualScales{}
                                                   : Planner(context).residual_scales(param);
}

std::size_t memory_count(const ExchangeParameter& param, const Codec& codec) {
  return codec.memory_count({.count = param.count, .rows = param.rows, .columns = param.columns});
}

Parameters::Parameters(const ReducerOptions& options, const ExchangeContext& context)
    : residuals(options.residual_dtype, generations(options)),
      options_(options),
      context_(context) {}

std::uint32_t Parameters::index_of(std::string_view name) const {
  const auto found = names_.find(name);
  if (found == names_.end())
    throw InvalidArgumentError("parameter \"" + std::string(name) + "\" was not added");
  return found->second;
}

// All gradients must use the same memory, and the transport must support this memory.
void Parameters::check_memory(const std::string& name, Memory memory) {
  if (params.empty() && !memory_fixed_) memory_ = memory;
  const std::string what = "the gradient of \"" + name + "\"";
  if (memory != memory_)
    throw InvalidArgumentError(what + " is " + std::string(memory_text(memory)) +
                               ", but the earlier gradients are " +
                               std::string(memory_text(memory_)));
  check_memory_supported(*context_.transport, memory, what);
}

// Every rank's shard has the length of the longest shard.
std::size_t Parameters::padded_count(const std::string& name, const GradientShape& shape) const {
  const auto ranks = static_cast<std::size_t>(context_.ranks.count);
  const std::size_t min_shard = ceil_div(shape.count, ranks);
  const std::size_t shard = shape.shard_count == 0 ? min_shard : shape.shard_count;
  if (context_.ranks.hierarchy != nullptr && !options_.hosts.empty())
    check_even(context_.ranks.hierarchy->groups(), "the reduce-scatter of \"" + name + "\"");
  if (shard < min_shard)
    throw InvalidArgumentError("shards of " + std::to_string(shard) + " values on " +
                               std::to_string(ranks) + " ranks are too small for the " +
                               std::to_string(shape.count) + " values of \"" + name +
                               "\": give at least " + std::to_string(min_shard));
  return ranks * shard;
}

ExchangeParameter Parameters::make_param(const std::string& name, const GradientShape& shape) {
  check_memory(name, shape.memory);
  ExchangeParameter param{.parameter = static_cast<std::uint32_t>(params.size()),
                          .count = shape.count,
                          .rows = shape.rows,
                          .columns = shape.columns,
                          .dtype = shape.dtype,
                          .collective = shape.collective};
  if (param.collective == Collective::kReduceScatter) param.count = padded_count(name, shape);
  return param;
}

GradientShape Parameters::shape(std::size_t parameter) const {
  const ExchangeParameter& param = params[parameter];
  return {.count = param.count,
          .dtype = param.dtype,
          .memory = memory_,
          .rows = param.rows,
          .columns = param.columns,
          .order = all[parameter].order};
}

void Parameters::add(ReducerParameter own, ExchangeParameter param) {
  if (!names_.emplace(own.name, param.parameter).second)
    throw InvalidArgumentError("parameter \"" + own.name +
                               "\" was added before: give another name");
  const int rank = context_.ranks.rank;
  ParameterBinding binding{.input = own.gradient, .output = own.gradient};
  ParameterFeedback residuals_of_rank;
  if (param.collective == Collective::kReduceScatter) {
    binding.output_first = shard_range(param.count, rank, context_.ranks.count).first;
    if (const Hierarchy* hierarchy = hierarchy_of(context_.ranks, param))
      residuals_of_rank.encoded_shards =
          hierarchy->groups().owners(hierarchy->groups().local_rank(rank));
  }
  all.push_back(std::move(own));
  params.push_back(std::move(param));
  bindings.push_back(binding);
  feedback.push_back(std::move(residuals_of_rank));
}

void Parameters::allocate_residuals(const MemoryBackend& backend) {
  memory_fixed_ = true;
  for (std::size_t i = residuals.parameters(); i < params.size(); ++i) {
    ExchangeParameter& param = params[i];
    param.active = backend.active(i);
    const StateRanges ranges = feedback_ranges(context_, all[i], param, context_.ranks.rank);
    residuals.add(ranges.encoded.count, ranges.owned.count(), max_memory(all[i], param));
    feedback[i].sender_first = ranges.encoded.first;
    feedback[i].owned = ranges.owned;
  }
  bind();
}

void Parameters::bind() {
  for (std::size_t i = 0; i < residuals.parameters(); ++i) {
    feedback[i].sender = residuals.sender(i);
    const bool two_shot = all[i].algorithm == Algorithm::kTwoShot;
    feedback[i].owner = two_shot ? residuals.owner(i) : SegmentState{};
    feedback[i].memory = residuals.memory(i, memory_count(params[i]));
  }
}

void Parameters::commit(const std::function<bool(std::size_t)>& took_part) {
  residuals.commit(took_part);
  bind();
}

// The owner's residual is the same for every codec. A later discard_step() may restore the values
// from before the last step, so these also change.
void Parameters::fold_unused_owners(StreamView stream) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    const ParameterFeedback& own = feedback[i];
    if (own.owned.count() == 0 || all[i].algorithm == Algorithm::kTwoShot) continue;
    const ResidualScales scale = tersor::residual_scales(context_, params[i]);
    for (const Residuals::Version& version : residuals.versions(i)) {
      std::vector<float> sum = to_floats(version.sender, stream);
      fold_owner(to_floats(version.owner, stream), own, scale,
                 {sum, own.sender_first, scale.sender});
      from_floats(sum, 1.0f, version.sender, stream);
    }
    residuals.clear(i, Residuals::kOwner);
  }
}

void Parameters::add_parameters(Agreement& agreement) const {
  for (std::size_t i = 0; i < params.size(); ++i)
    agreement.begin("\"" + all[i].name + "\"")
        .add("dtype", params[i].dtype, dtype_names())
        .add("count", static_cast<std::uint64_t>(params[i].count))
        .add("first_index", std::uint64_t{0})
        .add("codec", params[i].codec->spec().text())
        .add("name", all[i].name);
  agreement.end();
}

// Entries added in later versions follow the earlier entries.
void Parameters::add_parameter_extras(Agreement& agreement) const {
  for (const ReducerParameter& one : all)
    for (const RulePhase& phase : one.choice.phases)
      agreement.add("a rule's step", phase.from_step).add("codec", phase.codec->spec().text());
  for (const ExchangeParameter& param : params)
    if (param.collective == Collective::kReduceScatter) agreement.add("scattered", param.parameter);
  for (std::size_t i = 0; i < params.size(); ++i) {
    agreement.begin("\"" + all[i].name + "\"");
    if (params[i].codec->traits().needs_shape)
      agreement.add("rows", static_cast<std::uint64_t>(params[i].rows));
    agreement.add_unless_zero("order in memory", all[i].order, order_mark(params[i].parameter));
  }
  agreement.end();
}

Agreement Parameters::agreement(bool learns) const {
  Agreement agreement;
  agreement.add("operation", std::string_view("reducer"))
      .add("reduction", options_.reduction, reduction_names())
      .add("algorithm", options_.algorithm, algorithm_names())
      .add("ranks", static_cast<std::uint32_t>(context_.ranks.count))
      .add("chunk_count", static_cast<std::uint64_t>(options_.chunk_count))
      .add("bucket_bytes", static_cast<std::uint64_t>(options_.bucket_bytes))
      .add_unless_zero("number of loaded states", loaded_states, "loaded states");
  add_parameters(agreement);
  add_parameter_extras(agreement);
  if (options_.order == SendingOrder::kReadyOrder)
    agreement.add("order of sending", std::string_view("of ready"));
  if (learns) agreement.add("learning", std::string_view("learns"));
  agreement.add_unless_zero("elastic", static_cast<std::uint32_t>(options_.elastic), "elastic")
      .add_unless_zero("weights", static_cast<std::uint32_t>(options_.weighted), "weights");
  if (context_.on_device()) agreement.add("memory", std::string_view("device"));
  add_grid(agreement, context_.ranks.grid);
  if (context_.ranks.hierarchy != nullptr)
    add_groups(agreement, context_.ranks.hierarchy->groups(), options_.host_codec);
  return agreement;
}

}  // namespace tersor
