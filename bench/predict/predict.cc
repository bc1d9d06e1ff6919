// `tersor-bench predict`: the cost model for any number of ranks and any link, with the speeds of
// codecs on this machine. Sends nothing over a network.

#include <fmt/format.h>
#include <tersor/auto.h>
#include <tersor/error.h>
#include <tersor/inprocess.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/commands.h"
#include "bench/common/arguments.h"
#include "bench/common/records.h"
#include "bench/common/table.h"
#include "comm/collectives/grid.h"
#include "comm/tuning/link_probe.h"
#include "comm/tuning/measure.h"
#include "comm/tuning/model.h"

namespace tersor::bench {
namespace {

struct PredictOptions {
  std::vector<std::string> codecs = {"none", "bf16", "int8", "int4", "topk:density=0.01"};
  std::string ranks = "8..4096";
  std::string link = "1Gbit,50us";
  std::string local = "100Gbit,2us";
  int hosts = 0;  // 0: one host per rank
  std::vector<std::size_t> bytes = {64 << 20};
  std::string dtype = "f32";
  std::size_t chunk_count = kDefaultChunkCount;
  std::vector<int> dims;  // grid of two-shot; empty: the fastest grid
  double error_growth = kDefaultErrorGrowth;
  double message_seconds = -1;  // negative: measure
  double crowding = 1;
  std::filesystem::path json;
};

constexpr int kMaxRanks = 1 << 20;

int parse_ranks(std::string_view text) {
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1 || ranks > kMaxRanks)
    throw InvalidArgumentError(fmt::format(
        "\"{}\" are no ranks: write 8, or 8..4096 for 8, 16, … 4096, up to {}", text, kMaxRanks));
  return ranks;
}

/// "8..64" is 8, 16, 32, 64.
std::vector<int> parse_rank_range(const std::string& text) {
  const auto dots = text.find("..");
  if (dots == std::string::npos) return {parse_ranks(text)};
  const int first = parse_ranks(text.substr(0, dots)), last = parse_ranks(text.substr(dots + 2));
  if (first > last)
    throw InvalidArgumentError(fmt::format("in \"{}\" the first is the larger", text));
  std::vector<int> all;
  for (int ranks = first; ranks <= last; ranks *= 2) all.push_back(ranks);
  return all;
}

LinkFigures figures_of(const std::string& text, double message_seconds) {
  const Link link = parse_link(text);
  if (!link.emulated())
    throw InvalidArgumentError("predict needs a link with a rate, e.g. 1Gbit,50us");
  return {.latency = std::chrono::duration<double>(link.latency).count(),
          .seconds_per_byte = 8 * link.overhead / link.bits_per_second,
          .seconds_per_message = message_seconds};
}

/// Measures the cost of a message in addition to latency and bytes, between two threads of this
/// process.
double measured_message_seconds() {
  double seconds = 0;
  run_ranks(2, {}, [&](Transport& transport) {
    const LinkFigures figures = probe_link(transport, Memory::kHost, kDefaultTimeout);
    if (transport.rank() == 0) seconds = figures.seconds_per_message;
  });
  return seconds;
}

/// A row: a codec with its fastest algorithm.
struct PredictRow {
  std::string codec;
  std::string algorithm;
  int ranks = 1;
  int hosts = 1;
  std::vector<int> dims = {};  ///< grid of two-shot
  std::size_t count = 0;
  double bytes = 0;
  Prediction prediction = {};

  double algbw() const { return bytes / std::max(prediction.seconds, 1e-12) / 1e9; }
  double busbw() const { return algbw() * 2 * (ranks - 1) / ranks; }
  std::string choice() const { return algorithm + (dims.size() > 1 ? " " + text_of(dims) : ""); }
};

/// A row with the best prediction for raw values, by Tersor or another library, for comparison.
struct ComparedRow : PredictRow {
  PredictRow raw;

  /// True if the printed times differ, too.
  bool is_slower() const { return prediction.seconds > 1.01 * raw.prediction.seconds; }
  std::string speedup() const {
    const double seconds = prediction.seconds;
    return seconds > 0 ? fmt::format("{:.2f}x", raw.prediction.seconds / seconds) : "-";
  }
};

/// Predicts for one set of options, and keeps measurements.
class Predictor {
 public:
  explicit Predictor(const PredictOptions& options)
      : options_(options),
        dtype_(parse_gradient_dtype(options.dtype)),
        message_seconds_(options.message_seconds >= 0 ? options.message_seconds
                                                      : measured_message_seconds()),
        link_(figures_of(options.link, message_seconds_)),
        local_(figures_of(options.local, message_seconds_)),
        add_seconds_(measure_addition()) {}

  PredictRow predict(const std::string& spec, int ranks, std::size_t count) {
    const auto codec = make_codec(spec);
    const CostFigures costs = figures(spec, ranks);
    CostQuery query{.codec = codec.get(),
                    .dtype = dtype_,
                    .count = count,
                    .ranks = ranks,
                    .chunk_count = options_.chunk_count,
                    .dims = options_.dims,
                    .error_growth = options_.error_growth};
    PredictRow row{.codec = spec,
                   .ranks = ranks,
                   .hosts = ranks / costs.network.ranks_per_host,
                   .count = count,
                   .bytes = static_cast<double>(count * dtype_bytes(dtype_))};
    for (const Algorithm algorithm : possible_algorithms(*codec, dtype_)) {
      query.algorithm = algorithm;
      keep_faster(row, predict_on_best_grid(query, costs), std::string(algorithm_name(algorithm)));
      if (algorithm == Algorithm::kTwoShot && costs.network.ranks_per_host > 1)
        keep_faster(row, {{}, predict_hierarchical(query, costs)}, "hierarchical");
    }
    return row;
  }

  /// The fastest algorithm for raw values.
  PredictRow best_raw(int ranks, std::size_t count) {
    PredictRow row = predict("none", ranks, count);
    const CostQuery query{.dtype = dtype_, .count = count, .ranks = ranks};
    keep_faster(row, {{}, predict_halving_doubling(query, figures("none", ranks))},
                "halving and doubling");
    return row;
  }

  std::string figures_text() const {
    return fmt::format(
        "Predicted, not measured: link {}{}; {} a message; codecs as quick as on this machine:\n"
        "{}{}\n\n",
        options_.link, options_.hosts > 0 ? ", within hosts " + options_.local : "",
        format_seconds(message_seconds_), machine_name(),
        options_.crowding > 1 ? fmt::format("; {} ranks a core", options_.crowding) : "");
  }

 private:
  static void keep_faster(PredictRow& row, GridPrediction found, std::string algorithm) {
    if (!row.algorithm.empty() && found.prediction.seconds >= row.prediction.seconds) return;
    row.prediction = found.prediction;
    row.algorithm = std::move(algorithm);
    row.dims = std::move(found.dims);
  }

  CostFigures figures(const std::string& spec, int ranks) {
    if (options_.hosts > 0 && ranks % options_.hosts != 0)
      throw InvalidArgumentError(fmt::format("{} ranks do not fill {} hosts: give a multiple of {}",
                                             ranks, options_.hosts, options_.hosts));
    const int per_host = options_.hosts > 0 ? ranks / options_.hosts : 1;
    return {.network = {.link = link_, .local = local_, .ranks_per_host = per_host},
            .codec = costs_of(spec),
            .add_seconds_per_byte = add_seconds_,
            .crowding = options_.crowding};
  }

  const CodecCosts& costs_of(const std::string& spec) {
    const auto [found, is_new] = costs_.try_emplace(spec);
    if (is_new) found->second = measure_codec(spec, dtype_);
    return found->second;
  }

  const PredictOptions& options_;
  Dtype dtype_;
  std::map<std::string, CodecCosts> costs_;
  double message_seconds_;
  LinkFigures link_, local_;
  double add_seconds_;
};

Record record_of(const PredictOptions& options, const ComparedRow& row) {
  return {{"benchmark", "predict"},
          {"codec", row.codec},
          {"algorithm", row.algorithm},
          {"dims", row.dims},
          {"link", options.link},
          {"local", options.local},
          {"ranks", row.ranks},
          {"hosts", row.hosts},
          {"dtype", options.dtype},
          {"count", row.count},
          {"seconds", row.prediction.seconds},
          {"work_seconds", row.prediction.work_seconds},
          {"bare_seconds", row.raw.prediction.seconds},
          {"bare_algorithm", row.raw.algorithm},
          {"wire_bytes", row.prediction.sent_bytes},
          {"algbw", row.algbw()},
          {"busbw", row.busbw()},
          {"chunk_count", options.chunk_count},
          {"crowding", options.crowding}};
}

Table<ComparedRow> print_head(const std::vector<std::string>& codecs) {
  return Table<ComparedRow>(
      {{{"ranks", "", 6}, [](auto& row) { return std::to_string(row.ranks); }},
       {{"hosts", "", 6}, [](auto& row) { return std::to_string(row.hosts); }},
       {{"size", "", 9}, [](auto& row) { return format_bytes(row.bytes); }},
       {{"codec", "", longest(codecs), Align::kLeft}, &ComparedRow::codec},
       {{"algorithm", "", 21, Align::kLeft}, &ComparedRow::choice},
       {{"predicted", "time", 9}, [](auto& row) { return format_seconds(row.prediction.seconds); }},
       {{"speed-up", "", 8}, &ComparedRow::speedup},
       {{"busbw", "GB/s", 8}, [](auto& row) { return fmt::format("{:.3f}", row.busbw()); }},
       {{"sent", "by a rank", 9},
        [](auto& row) { return format_bytes(row.prediction.sent_bytes); }}});
}

/// Prints the cases in which encoding is slower than no compression.
void print_slower(const std::vector<ComparedRow>& slower_rows) {
  if (slower_rows.empty()) return;
  fmt::print("\nSlower than uncompressed:\n");
  for (const ComparedRow& row : slower_rows)
    fmt::print("  {} of {} on {} ranks: {}, {} by {}\n", row.codec, format_bytes(row.bytes),
               row.ranks, format_seconds(row.prediction.seconds),
               format_seconds(row.raw.prediction.seconds), row.raw.algorithm);
}

void run_predict(const PredictOptions& options) {
  const std::vector<std::string> codecs = deduplicated(options.codecs);
  const std::size_t value_bytes = dtype_bytes(parse_gradient_dtype(options.dtype));
  const std::vector<int> all_ranks = parse_rank_range(options.ranks);
  RecordFile records(options.json);
  Predictor predictor(options);
  fmt::print("{}", predictor.figures_text());
  const Table table = print_head(codecs);
  std::vector<ComparedRow> slower_rows;
  for (const std::size_t bytes : options.bytes)
    for (const int ranks : all_ranks) {
      const std::size_t count = std::max<std::size_t>(bytes / value_bytes, 1);
      const PredictRow raw = predictor.best_raw(ranks, count);
      for (const std::string& codec : codecs) {
        const ComparedRow row{predictor.predict(codec, ranks, count), raw};
        table.print(row);
        records.add(record_of(options, row));
        if (row.is_slower()) slower_rows.push_back(row);
      }
    }
  print_slower(slower_rows);
}

void add_placement_options(CLI::App& command, PredictOptions& options) {
  add(command, "--ranks", options.ranks, "Ranks: 8, or 8..4096 for 8, 16, … 4096", "N|FIRST..LAST");
  command
      .add_option("--hosts", options.hosts,
                  "Hosts, over which ranks are spread evenly and whose link they share; without "
                  "it each rank has a host")
      ->transform(within(1, kMaxRanks))
      ->type_name("N");
  add(command, "--link", options.link, "Link of each host: RATE[,LATENCY[,overhead=FACTOR]]",
      "LINK", checked(link_text));
  add(command, "--local", options.local, "Between ranks of one host, with --hosts", "LINK",
      checked(link_text));
}

void add_cost_options(CLI::App& command, PredictOptions& options) {
  command
      .add_option("--message", options.message_seconds,
                  "What a message costs beside latency and bytes: seconds, or 5us as in a link; "
                  "without it, what is measured between two threads")
      ->transform(checked(seconds_text))
      ->type_name("TIME");
  add(command, "--crowding", options.crowding, "Ranks that share a core while they encode", "F",
      within(0, 1024));
}

void add_options(CLI::App& command, PredictOptions& options) {
  add_codecs(command, options.codecs);
  add_placement_options(command, options);
  add(command, "--bytes", options.bytes, "Sizes of the gradient; K, M and G are 1024s", "BYTES",
      size_suffix());
  add(command, "--chunk", options.chunk_count, "Values of a chunk; K, M and G are 1024s", "N",
      size_suffix());
  command
      .add_option(
          "--dims", options.dims,
          "Of two-shot: ranks of each dimension of a grid, e.g. 16,16; without it those that "
          "are quickest")
      ->delimiter(',')
      ->type_name("N,...");
  add(command, "--error-growth", options.error_growth,
      "How many times the squared error of one dimension a grid may have that is chosen", "F",
      within(1, 1024));
  add_dtype(command, options.dtype);
  add_cost_options(command, options);
  add_json(command, options.json);
}

}  // namespace

void add_predict_command(CLI::App& program) {
  const auto options = std::make_shared<PredictOptions>();
  CLI::App& command = *program.add_subcommand(
      "predict", "Predicts how long an allreduce takes on any number of ranks");
  add_options(command, *options);
  command.callback([options] { run_predict(*options); });
}

}  // namespace tersor::bench
