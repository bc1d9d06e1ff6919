#include "comm/tuning/tuner.h"

#include "codecs/planned_codec.h"
#include "comm/collectives/choose.h"
#include "comm/collectives/hosts.h"
#include "comm/transport/arguments.h"
#include "comm/tuning/link_probe.h"
#include "comm/tuning/measure.h"
#include "comm/tuning/text.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <span>

namespace tersor {
namespace {

// Longer chunks than the transport's default gain almost nothing, and the buffers exceed the
// caches.
std::array<std::size_t, 2> chunk_counts(const Transport& transport) {
  const std::size_t own = transport.traits().chunk_count;
  return {own, own / 4};
}

constexpr std::size_t kMaxGradients = 1024;  // maximum number of remembered sizes

// Calls are frequent, and the prediction of a call is complete.
const Learner::Terms kCalls{
    .timed = "calls", .predicted = "calls", .max_ratio = 2, .first_pause = 64};

/// Equal for ranks sharing the cores of a machine.
std::uint64_t machine_id() {
  std::string name;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> name;
  if (name.empty()) {
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    name = host.data();
  }
  return std::hash<std::string>()(name);
}

void append(std::vector<float>& figures, CodecCosts costs) {
  for (const WorkCost* cost : fields_of(costs)) {
    figures.push_back(static_cast<float>(cost->per_call));
    figures.push_back(static_cast<float>(cost->per_value));
  }
}

CodecCosts read_costs(std::span<const float>& figures) {
  CodecCosts costs;
  for (WorkCost* cost : fields_of(costs)) {
    *cost = {double{figures[0]}, double{figures[1]}};
    figures = figures.subspan(2);
  }
  return costs;
}

bool any_feedback(const std::vector<std::string>& specs) {
  return std::ranges::any_of(
      specs, [](const std::string& spec) { return make_codec(spec)->has_feedback(); });
}

AutoOptions checked(AutoOptions options) {
  for (std::string& spec : options.codecs) {
    if (spec == kAutoCodec)
      throw InvalidArgumentError("the candidates of codec auto contain auto: leave it out");
    spec = make_codec(spec)->spec().text();
  }
  if (any_feedback(options.codecs))
    for (std::string& spec : options.codecs) spec = with_feedback(spec, Feedback::kResidual);
  if (options.threads == 0) throw InvalidArgumentError("threads is 0: give at least 1");
  if (options.link) check_link(*options.link, "the link");
  Grid::max_dimensions(options.error_growth);
  return options;
}

std::string choice_text(const AutoChoice& choice) {
  const std::string grid = choice.dims.size() > 1 ? " on " + text_of(choice.dims) : "";
  return choice.codec + " " + std::string(algorithm_name(choice.algorithm)) + grid +
         ", chunks of " + std::to_string(choice.chunk_count);
}

std::string shape_text(Dtype dtype, std::size_t count) {
  return std::to_string(count) + " values of " + std::string(dtype_name(dtype));
}

}  // namespace

Tuner::Impl::Impl(Transport& transport, AutoOptions requested)
    : options_(checked(std::move(requested))), channel_(transport.channel()) {
  find_machines();
  measure_network();
  measure_costs(Dtype::kF32);
}

// False for device memory if the library below adds on the device: the measured link then includes
// the additions.
bool Tuner::Impl::adds_on_host() const {
  return options_.memory == Memory::kHost || !channel_->traits().queues;
}

// Selects the measuring ranks, and determines how many ranks share a core if all ranks encode.
void Tuner::Impl::find_machines() {
  const std::uint64_t own = machine_id();
  Handle handle = channel_->all_gather(
      {.name = "auto (machines)", .tag = channel_->reserve_tags(1), .timeout = options_.timeout},
      std::as_bytes(std::span(&own, 1)), sizeof(own));
  handle.wait_synchronize();
  int ranks_on_machine = 1;
  for (int rank = 0; rank < channel_->ranks(); ++rank) {
    if (rank == channel_->rank()) continue;
    const ConstByteSpan received = handle.received(rank);
    std::uint64_t other = 0;
    if (received.size() != sizeof(other))
      throw TransportError("auto: rank " + std::to_string(rank) + " sent no number of its machine");
    std::memcpy(&other, received.data(), sizeof(other));
    if (other != own) continue;
    ++ranks_on_machine;
    if (rank < channel_->rank()) measures_ = false;
  }
  const auto cores = static_cast<double>(std::max(1l, sysconf(_SC_NPROCESSORS_ONLN)));
  auto crowding = static_cast<float>(std::max(1.0, ranks_on_machine * options_.threads / cores));
  agree_on_maximum(*channel_, {&crowding, 1}, options_.timeout);
  crowding_ = on_device() ? 1.0 : double{crowding} / options_.threads;
}

// bf16 is no shorter than other 16-bit gradients.
std::vector<std::string> Tuner::Impl::candidates(Dtype dtype) const {
  std::vector<std::string> specs = {"none"};
  if (dtype == Dtype::kF32) specs.emplace_back("bf16");
  if (any_feedback(options_.codecs))
    for (std::string& spec : specs) spec = with_feedback(spec, Feedback::kResidual);
  for (const std::string& spec : options_.codecs)
    if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  return specs;
}

// All ranks use the speeds of the slowest machine.
void Tuner::Impl::measure_costs(Dtype dtype) {
  const std::vector<std::string> specs = candidates(dtype);
  if (costs_.contains({specs.front(), dtype})) return;
  std::vector<float> figures;
  for (const std::string& spec : specs)
    append(figures, measures_ ? measure_codec(spec, dtype, options_.memory) : CodecCosts{});
  figures.push_back(measures_ && adds_on_host() ? static_cast<float>(measure_addition()) : 0.0f);
  agree_on_maximum(*channel_, figures, options_.timeout);
  std::span<const float> rest = figures;
  for (const std::string& spec : specs) costs_[{spec, dtype}] = read_costs(rest);
  add_seconds_per_byte_ = double{rest.front()};
}

// If hosts have equal numbers of several ranks, measures the link of a host and the link within
// hosts. A single rank per host uses the host's link during the measurement. Otherwise, all ranks
// are alike.
void Tuner::Impl::measure_network() {
  const HostGroups groups(channel_->hosts(), channel_->ranks());
  const bool alike = groups.hosts() == 1 || groups.hosts() == groups.ranks() || !groups.even();
  if (options_.link.has_value() || alike) {
    network_.link = options_.link ? *options_.link : probe(all_ranks(channel_->ranks()));
    return;
  }
  network_.ranks_per_host = groups.max_ranks_per_host();
  network_.local = probe(groups.host_members(channel_->rank()));
  network_.link = probe(groups.owners(0));
}

// Measures the link between the members. All ranks get the maximum over all groups.
LinkFigures Tuner::Impl::probe(const std::vector<int>& members) {
  LinkFigures own;
  if (std::binary_search(members.begin(), members.end(), channel_->rank()))
    own = probe_link(*channel_->split(members), options_.memory, options_.timeout);
  std::array<float, 4> figures = {
      static_cast<float>(own.latency), static_cast<float>(own.seconds_per_byte),
      static_cast<float>(own.seconds_per_message), static_cast<float>(own.core_seconds_per_byte)};
  agree_on_maximum(*channel_, figures, options_.timeout);
  return {figures[0], figures[1], figures[2], figures[3]};
}

// Encodes between hosts only. Uses the default chunk length, as chunks do.
void Tuner::Impl::add_hierarchical(const std::string& spec, CostQuery query,
                                   const CostFigures& figures, std::vector<AutoPrediction>& all) {
  const auto candidates = possible_algorithms(*query.codec, query.dtype);
  if (std::find(candidates.begin(), candidates.end(), Algorithm::kTwoShot) == candidates.end())
    return;
  query.chunk_count = channel_->traits().chunk_count;
  const double seconds = predict_hierarchical(query, figures).seconds;
  all.push_back({{spec, Algorithm::kHierarchical, query.chunk_count}, seconds});
}

CostFigures Tuner::Impl::figures_of(const std::string& spec, Dtype dtype) const {
  return {.network = network_,
          .codec = costs_.at({spec, dtype}),
          .add_seconds_per_byte = add_seconds_per_byte_,
          .crowding = crowding_};
}

// A reduce-scatter has a single algorithm, determined by the codec.
void Tuner::Impl::add_scatter(const std::string& spec, CostQuery query,
                              std::vector<AutoPrediction>& all) {
  query.algorithm = choose_reduce_scatter(*query.codec, query.dtype, "reduce_scatter");
  for (const std::size_t chunk_count : chunk_counts(*channel_)) {
    query.chunk_count = chunk_count;
    const double seconds = predict_reduce_scatter(query, figures_of(spec, query.dtype)).seconds;
    all.push_back({{spec, Algorithm::kAuto, chunk_count}, seconds});
  }
}

// Adds the fastest chunk length and grid for each algorithm.
void Tuner::Impl::add_alternatives(const std::string& spec, const CostQuery& query,
                                   std::vector<AutoPrediction>& all) {
  const CostFigures figures = figures_of(spec, query.dtype);
  for (const Algorithm algorithm : possible_algorithms(*query.codec, query.dtype)) {
    AutoPrediction best{{spec, algorithm, channel_->traits().chunk_count}, INFINITY};
    for (const std::size_t chunk_count : chunk_counts(*channel_)) {
      CostQuery cut = query;
      cut.algorithm = algorithm;
      cut.chunk_count = chunk_count;
      GridPrediction on_grid = predict_on_best_grid(cut, figures);
      const double seconds = on_grid.prediction.seconds;
      if (seconds < best.seconds)
        best = {{spec, algorithm, chunk_count, std::move(on_grid.dims)}, seconds};
    }
    all.push_back(std::move(best));
  }
  if (figures.network.ranks_per_host > 1) add_hierarchical(spec, query, figures, all);
}

std::vector<AutoPrediction> Tuner::Impl::alternatives(const Gradient& gradient) {
  measure_costs(gradient.dtype);
  std::vector<AutoPrediction> all;
  for (const std::string& spec : candidates(gradient.dtype)) {
    const auto codec = make_codec(spec);
    const CostQuery query{.codec = codec.get(),
                          .dtype = gradient.dtype,
                          .count = gradient.count,
                          .ranks = channel_->ranks(),
                          .dims = gradient.dims,
                          .error_growth = options_.error_growth};
    if (gradient.collective == Collective::kReduceScatter)
      add_scatter(spec, query, all);
    else
      add_alternatives(spec, query, all);
  }
  return all;
}

Tuner::Impl::Trials& Tuner::Impl::trials(Dtype dtype, std::size_t count) {
  const auto found = trials_.find({dtype, count});
  if (found != trials_.end()) {
    found->second.used = ++calls_;
    return found->second;
  }
  for (const std::string& spec : options_.codecs)
    if (make_codec(spec)->has_feedback())
      throw InvalidArgumentError("auto cannot choose " + spec +
                                 " in an allreduce, because its codecs share no residual: use a "
                                 "GradientReducer, or leave out +ef");
  const std::vector<AutoPrediction> candidates = alternatives({dtype, count});
  Learner::Group group{.name = shape_text(dtype, count), .candidates = {}};
  for (const AutoPrediction& candidate : candidates)
    group.candidates.push_back({choice_text(candidate.choice), candidate.seconds});
  group.chosen = static_cast<std::size_t>(
      std::ranges::min_element(candidates, {}, &AutoPrediction::seconds) - candidates.begin());
  if (trials_.size() >= kMaxGradients)
    trials_.erase(
        std::ranges::min_element(trials_, {}, [](const auto& one) { return one.second.used; }));
  return trials_
      .emplace(Gradient{dtype, count}, Trials{candidates, Learner({group}, kCalls), ++calls_})
      .first->second;
}

void Tuner::Impl::record(Dtype dtype, std::size_t count, double seconds) {
  Learner& learner = trials(dtype, count).learner;
  if (channel_->ranks() == 1 || !learner.add(seconds)) return;
  auto slowest = static_cast<float>(learner.seconds());
  agree_on_maximum(*channel_, {&slowest, 1}, options_.timeout);
  learner.agree(double{slowest});
}

// The alternatives of a single gradient, without hierarchical exchange: a reducer uses it for all
// gradients or none.
const std::vector<AutoPrediction>& Tuner::Impl::predicted(const Gradient& gradient) {
  if (predicted_.size() >= kMaxGradients && !predicted_.contains(gradient)) predicted_.clear();
  std::vector<AutoPrediction>& cached = predicted_[gradient];
  if (cached.empty()) {
    cached = alternatives(gradient);
    std::erase_if(cached, [](const AutoPrediction& candidate) {
      return candidate.choice.algorithm == Algorithm::kHierarchical;
    });
    std::ranges::stable_sort(cached, {}, &AutoPrediction::seconds);
  }
  return cached;
}

std::vector<AutoPrediction> Tuner::Impl::predict_each(const Gradient& gradient) {
  std::vector<AutoPrediction> each;
  const std::vector<AutoPrediction>& all = predicted(gradient);
  for (const std::string& spec : candidates(gradient.dtype)) {
    const auto found = std::ranges::find(
        all, spec,
        [](const AutoPrediction& candidate) -> const auto& { return candidate.choice.codec; });
    if (found != all.end()) each.push_back(*found);
  }
  return each;
}

// Without trials, a reducer starts with the prediction.
std::string Tuner::Impl::explain() const {
  std::string text = "auto: " + std::to_string(channel_->ranks()) + " ranks; link of " +
                     rate_text(network_.link.seconds_per_byte) + ", " +
                     seconds_text(network_.link.latency) + " of latency and " +
                     seconds_text(network_.link.seconds_per_message) + " per message (" +
                     (options_.link ? "as given" : "measured") + ")\n";
  for (const auto& [gradient, trials] : trials_) text += trials.learner.explain();
  for (const auto& [gradient, all] : predicted_) {
    text += shape_text(gradient.dtype, gradient.count) + "\n";
    for (const AutoPrediction& one : all)
      text += "  " + choice_text(one.choice) + ": predicted " + seconds_text(one.seconds) + "\n";
  }
  return text;
}

Tuner::Tuner(Transport& transport, AutoOptions options)
    : impl_(std::make_unique<Impl>(transport, std::move(options))) {}
Tuner::~Tuner() = default;

AutoChoice Tuner::choose(Dtype dtype, std::size_t count) {
  return impl_->trials(dtype, count).current();
}

void Tuner::record(Dtype dtype, std::size_t count, double seconds) {
  impl_->record(dtype, count, seconds);
}

bool Tuner::settled(Dtype dtype, std::size_t count) const {
  const auto found = impl_->trials_.find({dtype, count});
  return found != impl_->trials_.end() &&
         (impl_->channel_->ranks() == 1 || found->second.learner.settled());
}

AutoChoice Tuner::predict(Dtype dtype, std::size_t count, Collective collective) {
  return impl_->predicted({dtype, count, collective}).front().choice;
}

std::vector<AutoPrediction> Tuner::predict_each(Dtype dtype, std::size_t count,
                                                Collective collective, std::span<const int> dims) {
  return impl_->predict_each({dtype, count, collective, {dims.begin(), dims.end()}});
}

const LinkFigures& Tuner::link() const { return impl_->network_.link; }
Memory Tuner::memory() const { return impl_->options_.memory; }
double Tuner::error_growth() const { return impl_->options_.error_growth; }
std::string Tuner::explain() const { return impl_->explain(); }

}  // namespace tersor
