// Implements run_loss.

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <vector>

#include "bench/allreduce/reducer.h"

namespace tersor::bench {
namespace {

/// Seconds of the slowest rank. Except for step times, seconds count from the killed rank's end.
struct Loss {
  double plain = 0, elastic = 0;  ///< a step of all ranks
  double notified = 0;            ///< until RanksLostError is thrown
  double resumed = 0;
  double next = 0;   ///< until a step of the remaining ranks is complete
  double later = 0;  ///< a step of the remaining ranks
  int remaining = 0;
};

/// A rank's two reducers, elastic and plain, over equal numbers of values.
class LossRank {
 public:
  LossRank(const CollectiveCase& config, const BackwardPass& pass, const RankGradients& gradients,
           Rank& rank)
      : rank_(rank),
        plain_channel_(rank.transport().channel()),
        plain_(config, pass, gradients.of(rank.index()), *plain_channel_),
        elastic_(config, pass, gradients.of(rank.index()), rank.transport(), Elastic::kOn) {}

  Loss measure(const Kill& kill) {
    Loss loss;
    RankCall* const callers[] = {&plain_, &elastic_};
    warm_up(callers, rank_, kill.step);
    const auto times = time_iterations(callers, rank_, kill.step);
    loss.plain = times[0].seconds;
    loss.elastic = times[1].seconds;
    rank_.barrier();
    if (rank_.index() == kill.rank) std::raise(SIGKILL);
    resume(loss);
    loss.later = later(kill.step);
    return loss;
  }

 private:
  void resume(Loss& loss) {
    const Stopwatch watch;
    try {
      elastic_.call();
      throw Error("the killed rank took part in a step");
    } catch (const RanksLostError& lost) {
      loss.remaining = static_cast<int>(lost.members().size());
    }
    loss.notified = watch.seconds();
    elastic_.reducer().resume();
    loss.resumed = watch.seconds();
    elastic_.call();
    loss.next = watch.seconds();
    for (double* each : {&loss.notified, &loss.resumed, &loss.next}) *each = slowest(*each);
  }

  double later(std::size_t steps) {
    std::vector<double> seconds;
    for (std::size_t step = 0; step < steps; ++step) {
      elastic_.restore();
      slowest(0);  // starts all ranks together
      seconds.push_back(slowest(elastic_.time().seconds));
    }
    return median(seconds);
  }

  /// The maximum over the remaining ranks.
  double slowest(double own) {
    Transport& transport = elastic_.reducer().transport();
    std::vector<float> values(static_cast<std::size_t>(transport.ranks()), static_cast<float>(own));
    std::vector<ValueSpan> parts;
    for (float& value : values) parts.emplace_back(std::span(&value, 1));
    transport.maximum({.name = "slowest rank", .tag = transport.reserve_tags(1)}, parts)
        .wait_synchronize();
    return values.front();
  }

  Rank& rank_;
  std::unique_ptr<Transport> plain_channel_;
  ReducerRank plain_, elastic_;
};

void check(const AllreduceOptions& options, const Kill& kill, const Fleet& fleet) {
  if (options.fleet.transport != "tcp")
    throw InvalidArgumentError("--kill kills a process: take --transport tcp");
  if (options.codecs.size() != 1)
    throw InvalidArgumentError("--kill takes one codec: there is one loss in a run");
  if (kill.rank < 1 || kill.rank >= fleet.ranks())
    throw InvalidArgumentError(fmt::format("--kill {}@{}: a rank from 1 to {}, since rank 0 prints",
                                           kill.rank, kill.step, fleet.ranks() - 1));
}

void print(const Loss& loss, int ranks) {
  const auto line = [](const char* what, double seconds) {
    fmt::print("{:<40} {:>9.2f} ms\n", what, 1e3 * seconds);
  };
  line("a step", loss.plain);
  line("a step that may lose ranks", loss.elastic);
  fmt::print("killed: {} of {} ranks are left\n", loss.remaining, ranks);
  line("the others are told after", loss.notified);
  line("have resumed after", loss.resumed);
  line("have made a step after", loss.next);
  line("a step of theirs", loss.later);
}

}  // namespace

Kill parse_kill(const std::string& text) {
  Kill kill;
  const char* const end = text.data() + text.size();
  const auto [at, rank_error] = std::from_chars(text.data(), end, kill.rank);
  if (rank_error == std::errc() && at != end && *at == '@') {
    const auto [behind, error] = std::from_chars(at + 1, end, kill.step);
    if (error == std::errc() && behind == end && kill.step > 0) return kill;
  }
  throw InvalidArgumentError(fmt::format("\"{}\" is no RANK@STEP: write e.g. 2@20", text));
}

void run_loss(const AllreduceOptions& options) {
  const Kill kill = parse_kill(options.kill);
  const auto fleet = make_fleet(options.fleet);
  check(options, kill, *fleet);
  const Dtype dtype = parse_gradient_dtype(options.dtype);
  const RankGradients gradients(
      std::max<std::size_t>(byte_counts(options).front() / dtype_bytes(dtype), 1), dtype,
      fleet->ranks(), fleet->only_rank());
  const auto choices = choices_of(options);
  const CollectiveCase& config =
      *std::ranges::find(choices, options.codecs.front(), &CollectiveCase::codec);
  const BackwardPass pass{std::max<std::size_t>(options.parameters, 1), 0.0};
  fmt::print("{}; {}; {} of {} {} values; times of the slowest rank\n\n", machine_name(),
             fleet->text(), config.codec, gradients.count(), options.dtype);
  RecordFile records(fleet->has_rank0() ? options.json : "");
  const Loss loss = measure_on(
      *fleet, [&](Rank& rank) { return LossRank(config, pass, gradients, rank).measure(kill); });
  print(loss, fleet->ranks());
  records.add({{"benchmark", "loss"},
               {"transport", options.fleet.transport},
               {"link", options.fleet.link},
               {"ranks", fleet->ranks()},
               {"ranks_left", loss.remaining},
               {"codec", config.codec},
               {"count", gradients.count()},
               {"dtype", options.dtype},
               {"parameters", pass.parameters},
               {"steps", kill.step},
               {"step_seconds", loss.plain},
               {"elastic_step_seconds", loss.elastic},
               {"told_seconds", loss.notified},
               {"resumed_seconds", loss.resumed},
               {"next_step_seconds", loss.next},
               {"later_step_seconds", loss.later}});
}

}  // namespace tersor::bench
