// `tersor-bench train`: accuracy by bytes and time, on real images, for each codec and seed. All
// codecs of a seed see the same images in the same order, and train in turns.

#include <fmt/format.h>
#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <boost/timer/progress_display.hpp>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/commands.h"
#include "bench/common/arguments.h"
#include "bench/common/records.h"
#include "bench/common/table.h"
#include "bench/common/tensors.h"
#include "bench/report/report.h"
#include "bench/train/training_run.h"

namespace tersor::bench {
namespace {

/// The link of the recipe: bench/train/trainer/recipe.h compares the recipe's step time with this
/// link.
constexpr const char* kDefaultLink = "1Gbit,50us";

struct TrainOptions {
  std::vector<std::string> codecs = {"none", "bf16", "int8", "int4+ef", "topk:density=0.01+ef"};
  FleetOptions fleet{.link = kDefaultLink};
  trainer::TrainingRecipe recipe;
  std::vector<std::uint64_t> seeds = {1};
  std::string data_folder = trainer::kFashionMnistFolder;
  std::filesystem::path json;
  std::filesystem::path gradients;
  std::filesystem::path report_folder;
  ReportProgram report;
};

Record record_of(const TrainOptions& options, int ranks, const TrainingRun& run,
                 const EpochResult& epoch) {
  return {{"benchmark", "train"},
          {"codec", run.codec},
          {"seed", run.seed},
          {"transport", options.fleet.transport},
          {"ranks", ranks},
          {"link", options.fleet.link},
          {"epoch", epoch.epoch},
          {"step_seconds", epoch.step_seconds},
          {"seconds", epoch.seconds},
          {"accuracy", epoch.accuracy},
          {"loss", epoch.loss},
          {"wire_bytes", epoch.wire_bytes},
          {"compute_seconds", epoch.compute_seconds},
          {"encode_seconds", epoch.encode_seconds},
          {"wire_seconds", epoch.wire_seconds},
          {"decode_seconds", epoch.decode_seconds},
          {"exposed_seconds", epoch.exposed_seconds},
          {"epochs", run.recipe.epochs},
          {"batch", run.recipe.batch_images}};
}

/// A progress bar on a terminal; a line per epoch in a log.
class Progress {
 public:
  Progress(const TrainOptions& options, const Fleet& fleet, std::uint64_t seed, std::size_t steps)
      : width_(longest(options.codecs)) {
    fmt::print("{}, seed {}, {}\n", fmt::join(options.codecs, ", "), seed, fleet.text());
    std::fflush(stdout);
    if (is_terminal())
      bar_ = std::make_unique<boost::timer::progress_display>(steps, std::cout, "");
  }

  void step() {
    if (bar_) ++*bar_;
  }

  void epoch(const TrainingRun& run, const EpochResult& result) {
    if (bar_) return;
    fmt::print("  epoch {:>2} of {}  {:{}}  accuracy {:.2f} %  loss {:.4f}  {} of training\n",
               result.epoch, run.recipe.epochs, run.codec, width_, 100 * result.accuracy,
               result.loss, format_seconds(result.seconds));
    std::fflush(stdout);
  }

 private:
  std::size_t width_;
  std::unique_ptr<boost::timer::progress_display> bar_;
};

/// The mean of a field over runs and epochs.
double mean_of(const std::vector<Epochs>& runs, double EpochResult::*field) {
  double sum = 0, count = 0;
  for (const Epochs& epochs : runs)
    for (const EpochResult& epoch : epochs) {
      sum += epoch.*field;
      ++count;
    }
  return sum / count;
}

/// Accuracy of the last epochs in percent: "88.82", or "88.82 ± 0.18" for several seeds.
std::string accuracy_text(const std::vector<Epochs>& runs) {
  double mean = 0, squares = 0;
  for (const Epochs& epochs : runs) mean += 100 * epochs.back().accuracy / std::size(runs);
  if (runs.size() < 2) return fmt::format("{:.2f}", mean);
  for (const Epochs& epochs : runs)
    squares += std::pow(100 * epochs.back().accuracy - mean, 2) / (std::size(runs) - 1.0);
  return fmt::format("{:.2f} ± {:.2f}", mean, std::sqrt(squares));
}

using RunsOfCodecs = std::map<std::string, std::vector<Epochs>>;
using RunsField = Field<RunsOfCodecs::value_type>;

RunsField time_field(const char* title, const char* unit, double EpochResult::*field) {
  return {{title, unit, 8},
          [field](auto& codec) { return format_seconds(mean_of(codec.second, field)); }};
}

/// Prints a row per codec. `tersor-bench report` also shows the time until an accuracy.
void print_summary(const TrainOptions& options, const RunsOfCodecs& runs_of) {
  fmt::print("\n");
  const Table<RunsOfCodecs::value_type> table(
      {{{"codec", "", longest(options.codecs), Align::kLeft}, &RunsOfCodecs::value_type::first},
       {{"accuracy", "% of test", 13}, [](auto& codec) { return accuracy_text(codec.second); }},
       {{"sent", "per step", 8},
        [](auto& codec) { return format_bytes(mean_of(codec.second, &EpochResult::wire_bytes)); }},
       time_field("step", "mean", &EpochResult::step_seconds),
       time_field("compute", "of step", &EpochResult::compute_seconds),
       time_field("exposed", "of step", &EpochResult::exposed_seconds),
       time_field("encode", "work", &EpochResult::encode_seconds),
       time_field("wire", "work", &EpochResult::wire_seconds),
       time_field("decode", "work", &EpochResult::decode_seconds)});
  for (const std::string& codec : options.codecs) table.print(*runs_of.find(codec));
  fmt::print("\n");
}

/// Trains all codecs with a seed, and adds the epochs of each codec to `runs_of`.
void train_seed(const TrainOptions& options, Fleet& fleet, std::uint64_t seed,
                const trainer::TrainingData& data, RecordFile& records, RunsOfCodecs& runs_of) {
  std::vector<TrainingRun> runs;
  for (const std::string& codec : options.codecs) runs.push_back({codec, seed, options.recipe});
  const std::size_t steps = total_steps(runs.front(), data, fleet.ranks());
  Progress progress(options, fleet, seed, runs.size() * steps);
  std::vector<Tensor> gradients;
  const auto on_epoch = [&](const TrainingRun& run, const EpochResult& epoch) {
    progress.epoch(run, epoch);
    records.add(record_of(options, fleet.ranks(), run, epoch));
    if (!options.gradients.empty())
      write_safetensors(options.gradients, std::exchange(gradients, {}));
  };
  const auto on_gradient = [&](const trainer::Parameter& parameter) {
    const std::span<float> values = parameter.gradient.as<float>();
    gradients.push_back(
        {parameter.name, {values.begin(), values.end()}, {parameter.rows, parameter.columns}});
  };
  const auto trained =
      train(fleet, runs, data,
            {.step = [&] { progress.step(); }, .epoch = on_epoch, .gradient = on_gradient});
  for (std::size_t i = 0; i < runs.size(); ++i) runs_of[runs[i].codec].push_back(trained[i]);
}

/// The file for records. A report without a file for records has its records in the report's
/// folder.
std::filesystem::path records_path(const TrainOptions& options) {
  const bool beside_report = options.json.empty() && !options.report_folder.empty();
  return beside_report ? options.report_folder / "train.json" : options.json;
}

RunsOfCodecs train_all(const TrainOptions& options, Fleet& fleet) {
  RecordFile records(fleet.has_rank0() ? records_path(options) : "");
  const trainer::TrainingData data = trainer::load_training_data(options.data_folder);
  RunsOfCodecs runs_of;
  for (const std::uint64_t seed : options.seeds)
    train_seed(options, fleet, seed, data, records, runs_of);
  return runs_of;
}

void run_train(TrainOptions options) {
  options.codecs = deduplicated(options.codecs);
  options.seeds = deduplicated(options.seeds);
  double& warmup = options.recipe.warmup_epochs;
  warmup = std::min(warmup, static_cast<double>(options.recipe.epochs) / 2);
  const auto fleet = make_fleet(options.fleet);
  const bool draws = fleet->has_rank0() && !options.report_folder.empty();
  if (draws) check_report_folder(options.report, options.report_folder);
  print_summary(options, train_all(options, *fleet));
  if (draws)
    run_report(options.report,
               {records_path(options).string(), "--verdict", "-o", options.report_folder.string()});
}

std::string check_extension(const std::string& name) {
  if (name.ends_with(".safetensors")) return name;
  throw InvalidArgumentError(name + " does not end in .safetensors");
}

void add_options(CLI::App& command, TrainOptions& options) {
  add_codecs(command, options.codecs, Automatic::kAccepted);
  add_fleet(command, options.fleet);
  add(command, "--epochs", options.recipe.epochs, "Passes over the training images", "N",
      within(1, 10000))
      ->take_last();
  add(command, "--batch", options.recipe.batch_images, "Images of a rank in a step", "N",
      above_zero());
  add(command, "--seed", options.seeds, "One run of each codec for each", "N");
  add(command, "--data,--data-dir", options.data_folder,
      "Folder of {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]", "DIR");
  add_json(command, options.json);
  command
      .add_option("--gradients", options.gradients,
                  "Write the gradients of rank 0, as they are before they are reduced, of the last "
                  "step here")
      ->transform(checked(check_extension))
      ->type_name("FILE.safetensors");
  command.add_option("--report", options.report_folder, "Draw the report here afterwards")
      ->take_last()
      ->type_name("DIR");
  command.add_option("--python", options.report.python, "Python 3 with matplotlib (found)")
      ->type_name("PATH");
}

}  // namespace

void add_train_command(CLI::App& program) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App& command = *program.add_subcommand(
      "train", "Trains an image classifier on several ranks; the codecs of a seed take turns");
  add_options(command, *options);
  command.callback([options] { run_train(*options); });
}

}  // namespace tersor::bench
