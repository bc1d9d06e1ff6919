// Draws a scenario from a seed. All choices use integers of a single generator, so a seed gives the
// same scenario everywhere.
#include "tests/faults/scenario.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "tests/support/specs.h"

namespace tersor::faults {
namespace {

using std::chrono::milliseconds;

// Faults detected at a deadline use a short deadline and little work before. All other faults are
// reported at once, so their deadline is never reached, even on a busy machine.
constexpr milliseconds kShortInThreads{800};
constexpr milliseconds kShortInProcesses{1500};
constexpr milliseconds kLong{60'000};
constexpr unsigned kFewBits = 14;   // a step has fewer than 2^15 values with a short deadline,
constexpr unsigned kManyBits = 19;  // otherwise fewer than 2^20 (4 MiB)
constexpr unsigned kRowsBits = 5;   // for all rows of a rank

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : generator_(seed) {}

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(generator_() % limit); }
  bool chance(std::size_t one_in) { return below(one_in) == 0; }

  template <typename T, std::size_t count>
  T pick(const T (&choices)[count]) {
    return choices[below(count)];
  }
  template <typename T>
  T pick(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }

  /// At least 1. Every number of bits is equally likely.
  std::size_t values(unsigned most_bits) {
    const std::size_t least = std::size_t{1} << below(most_bits + 1);
    return least + below(least);
  }

 private:
  std::mt19937_64 generator_;
};

using Specs = std::vector<std::string>;

bool sends_frames(const std::string& spec) { return test::offers(spec, Exchange::kGather); }

/// Specs sending frames with every algorithm.
Specs framed_only(const Specs& specs) {
  Specs framed;
  std::ranges::copy_if(specs, std::back_inserter(framed), [](const std::string& spec) {
    return sends_frames(spec) && !test::offers(spec, Exchange::kNativeSum);
  });
  return framed;
}

/// Example specs of every registered codec.
const Specs& all_specs() {
  static const Specs specs = [] {
    Specs made;
    for (const CodecInfo& codec : test::flat_codecs())
      std::ranges::copy(test::example_specs(codec), std::back_inserter(made));
    return made;
  }();
  return specs;
}

const Specs& framed_specs() {
  static const Specs specs = framed_only(all_specs());
  return specs;
}

/// True if the work supports the hierarchical algorithm.
bool climbs(Work work) {
  return work == Work::kAllreduce || work == Work::kReduceScatter || work == Work::kAllgather ||
         work == Work::kAllToAll;
}

Algorithm draw_algorithm(Draw& draw, const Step& step) {
  constexpr std::pair<Exchange, Algorithm> kWays[] = {{Exchange::kNativeSum, Algorithm::kNative},
                                                      {Exchange::kTwoShot, Algorithm::kTwoShot},
                                                      {Exchange::kGather, Algorithm::kOneShot}};
  std::vector<Algorithm> ways = {Algorithm::kAuto};
  for (const auto& [exchange, algorithm] : kWays)
    if (test::offers(step.codec, exchange)) ways.push_back(algorithm);
  if (climbs(step.work)) ways.push_back(Algorithm::kHierarchical);
  return draw.pick(ways);
}

Work draw_work(Draw& draw, const std::string& spec) {
  constexpr Work kCollectives[] = {Work::kAllreduce, Work::kAllreduce, Work::kReduceScatter,
                                   Work::kAllgather, Work::kBroadcast, Work::kReduce,
                                   Work::kGather,    Work::kScatter,   Work::kAllToAll,
                                   Work::kAllToAll,  Work::kSend,      Work::kSend};
  const Work work = draw.pick(kCollectives);
  const bool fits =
      work == Work::kReduce ? test::offers(spec, Exchange::kTwoShot) : sends_frames(spec);
  return fits ? work : Work::kAllreduce;
}

/// A grid of two dimensions, if the number of ranks is divisible.
std::vector<int> draw_dims(Draw& draw, int ranks) {
  std::vector<std::vector<int>> all = {{}};
  for (int digit = 2; digit < ranks; ++digit)
    if (ranks % digit == 0) all.push_back({digit, ranks / digit});
  return draw.pick(all);
}

/// At least two hosts with equal numbers of ranks, consecutive or interleaved. Allreduce may also
/// get arbitrary hosts.
std::vector<int> draw_hosts(Draw& draw, Work work, int ranks) {
  std::vector<int> numbers, hosts;
  for (int number = 2; number <= ranks; ++number)
    if (ranks % number == 0) numbers.push_back(number);
  const int number = draw.pick(numbers);
  const bool any = draw.chance(2) && work == Work::kAllreduce, in_turn = draw.chance(2);
  for (int rank = 0; rank < ranks; ++rank)
    hosts.push_back(in_turn ? rank % number : rank * number / ranks);
  for (int rank = 1; any && rank + 1 < ranks; ++rank)
    hosts[static_cast<std::size_t>(rank)] = draw.chance(2) ? hosts.front() : hosts.back();
  return hosts;
}

/// Equal rows, random rows, or all rows to one rank. A rank sends no message to itself.
Rows draw_rows(Draw& draw, Work work, std::size_t ranks) {
  const std::size_t way = draw.below(3), one = draw.below(ranks);
  Rows rows(ranks, std::vector<std::size_t>(ranks, 0));
  for (std::size_t from = 0; from < ranks; ++from)
    for (std::size_t to = 0; to < ranks; ++to) {
      if (work == Work::kSend && from == to) continue;
      const std::size_t any = draw.below(5), to_one = to == one ? 4 : 0;
      rows[from][to] = way == 0 ? 2 : way == 1 ? any : to_one;
    }
  return rows;
}

bool has_rows(Work work) { return work == Work::kAllToAll || work == Work::kSend; }

Step draw_collective(Draw& draw, int ranks, std::string codec, unsigned most_bits,
                     std::optional<Work> wanted = {}) {
  Step step{.work = draw_work(draw, codec), .codec = std::move(codec)};
  if (wanted) step.work = *wanted;
  step.algorithm = draw_algorithm(draw, step);
  step.root = static_cast<int>(draw.below(static_cast<std::size_t>(ranks)));
  step.dims = draw_dims(draw, ranks);
  step.reduction = draw.chance(2) ? Reduction::kMean : Reduction::kSum;
  step.dtype = draw.chance(4) ? Dtype::kBf16 : Dtype::kF32;
  step.count = draw.values(has_rows(step.work) ? most_bits - kRowsBits : most_bits);
  if (has_rows(step.work)) step.rows = draw_rows(draw, step.work, static_cast<std::size_t>(ranks));
  if (step.algorithm == Algorithm::kHierarchical) step.hosts = draw_hosts(draw, step.work, ranks);
  return step;
}

Step draw_raw(Draw& draw, unsigned most_bits) {
  constexpr Work kRaw[] = {Work::kAllGather, Work::kExchange, Work::kSum,
                           Work::kMaximum,   Work::kBarrier,  Work::kPass};
  Step step{.work = draw.pick(kRaw)};
  if (step.work == Work::kBarrier) return step;
  step.dtype = draw.chance(3) ? Dtype::kBf16 : Dtype::kF32;
  step.count = draw.values(most_bits);
  return step;
}

Step draw_step(Draw& draw, int ranks, bool trains, unsigned most_bits) {
  if (trains && !draw.chance(3)) return {.work = Work::kReducerStep, .codec = {}};
  if (draw.chance(3)) return draw_raw(draw, most_bits);
  return draw_collective(draw, ranks, draw.pick(all_specs()), most_bits);
}

Trainer draw_trainer(Draw& draw, unsigned most_bits) {
  Trainer trainer;
  trainer.codec = draw.pick(all_specs()) + (draw.chance(3) ? "+ef" : "");
  trainer.progress = draw.chance(2) ? ProgressBy::kCaller : ProgressBy::kThread;
  for (std::size_t parameters = 2 + draw.below(4); parameters > 0; --parameters)
    trainer.counts.push_back(draw.values(most_bits - 1));
  return trainer;
}

FaultKind draw_kind(Draw& draw, Home home) {
  constexpr FaultKind kInThreads[] = {
      FaultKind::kThrow,    FaultKind::kRefused,  FaultKind::kLeave,
      FaultKind::kDisagree, FaultKind::kDisagree, FaultKind::kStop,
      FaultKind::kDamage,   FaultKind::kSkip,     FaultKind::kOtherRoot};
  constexpr FaultKind kInProcesses[] = {
      FaultKind::kThrow,    FaultKind::kRefused,  FaultKind::kLeave, FaultKind::kStop,
      FaultKind::kDamage,   FaultKind::kSkip,     FaultKind::kKill,  FaultKind::kSuspend,
      FaultKind::kDisagree, FaultKind::kOtherRoot};
  return home == Home::kThreads ? draw.pick(kInThreads) : draw.pick(kInProcesses);
}

/// True if the fault may happen within a step.
bool may_come_within(FaultKind kind) {
  return kind == FaultKind::kThrow || (is_silent(kind) && !is_mistake(kind));
}

Fault draw_fault(Draw& draw, FaultKind kind, const Scenario& scenario) {
  Fault fault{.kind = kind,
              .rank = static_cast<int>(draw.below(static_cast<std::size_t>(scenario.ranks))),
              .step = draw.below(scenario.steps.size()),
              .choice = static_cast<std::uint32_t>(draw.below(1u << 20))};
  if (may_come_within(kind) && draw.chance(2))
    fault.operation = static_cast<unsigned>(draw.below(3)) + 1;
  return fault;
}

bool is_reducer_step(const Step& step) { return step.work == Work::kReducerStep; }

/// Chooses a root or rows to make this rank send a message. A broadcast's root is this rank or, if
/// later ranks exist, the previous rank.
void let_send(Step& step, const Fault& fault, int ranks) {
  const int before = (fault.rank + ranks - 1) % ranks;
  if (step.work == Work::kScatter) step.root = fault.rank;
  if (step.work == Work::kBroadcast)
    step.root = ranks > 3 && fault.choice % 2 == 0 ? before : fault.rank;
  const bool gets = step.work == Work::kReduce || step.work == Work::kGather;
  if (gets && step.root == fault.rank) step.root = before;
  if (has_rows(step.work) && rows_before(step, fault.rank, ranks) == 0)
    step.rows[static_cast<std::size_t>(fault.rank)][static_cast<std::size_t>(before)] = 1;
}

bool knows_reducer(const Scenario& scenario) {
  const auto befallen = scenario.steps.begin() + static_cast<std::ptrdiff_t>(scenario.fault.step);
  return std::any_of(scenario.steps.begin(), befallen, is_reducer_step);
}

/// Work required by the fault, if the fault is limited to some work.
std::optional<Work> draw_befallen(Draw& draw, FaultKind kind, const std::string& spec) {
  constexpr Work kRooted[] = {Work::kBroadcast, Work::kGather, Work::kScatter, Work::kReduce};
  if (kind == FaultKind::kSkip) return Work::kSend;
  if (kind != FaultKind::kOtherRoot) return {};
  const Work work = draw.pick(kRooted);
  return work != Work::kReduce || test::offers(spec, Exchange::kTwoShot) ? work : Work::kGather;
}

/// Gives the fault a suitable step: frames to damage, a point-to-point message to skip, a root, or
/// arguments to change. A reducer compares arguments in its first step only.
void fit_step(Draw& draw, Scenario& scenario, unsigned most_bits) {
  const Fault& fault = scenario.fault;
  Step& step = scenario.steps[fault.step];
  const bool last = fault.kind == FaultKind::kSkip || fault.kind == FaultKind::kOtherRoot;
  const bool framed = last || fault.kind == FaultKind::kDamage;
  if (framed || (fault.kind == FaultKind::kDisagree && knows_reducer(scenario))) {
    const std::string spec = draw.pick(framed ? framed_specs() : all_specs());
    step = draw_collective(draw, scenario.ranks, spec, most_bits,
                           draw_befallen(draw, fault.kind, spec));
  }
  const bool damages = fault.kind == FaultKind::kDamage;
  if (damages || has_rows(step.work)) let_send(step, fault, scenario.ranks);
  if (last) scenario.steps.resize(fault.step + 1);
}

}  // namespace

Scenario draw_scenario(std::uint64_t seed, Home home) {
  Draw draw(seed);
  Scenario scenario{.seed = seed};
  const FaultKind kind = draw_kind(draw, home);
  const unsigned most_bits = is_silent(kind) ? kFewBits : kManyBits;
  scenario.ranks = 2 + static_cast<int>(draw.below(5));
  if (draw.chance(3)) scenario.link = "10Gbit,20us,overhead=1.046";
  scenario.timeout = kLong;
  if (is_silent(kind))
    scenario.timeout = home == Home::kThreads ? kShortInThreads : kShortInProcesses;
  scenario.trainer = draw_trainer(draw, most_bits);
  const bool trains = draw.chance(3);
  for (std::size_t steps = 1 + draw.below(6); steps > 0; --steps)
    scenario.steps.push_back(draw_step(draw, scenario.ranks, trains, most_bits));
  scenario.fault = draw_fault(draw, kind, scenario);
  fit_step(draw, scenario, most_bits);
  scenario.steps.push_back({.work = Work::kBarrier});  // every rank detects the fault here
  // A rank detecting the unexpected message may have started the first barrier.
  if (kind == FaultKind::kOtherRoot) scenario.steps.push_back({.work = Work::kBarrier});
  return scenario;
}

}  // namespace tersor::faults
