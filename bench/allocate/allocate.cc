// `tersor-bench allocate`: chooses a codec for each parameter from gradients in files, and compares
// the choice with a single codec for all parameters.

#include <fmt/format.h>
#include <tersor/allocate.h>
#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "bench/commands.h"
#include "bench/common/arguments.h"
#include "bench/common/records.h"
#include "bench/common/table.h"
#include "bench/common/tensors.h"
#include "comm/reducer/rules.h"

namespace tersor::bench {
namespace {

constexpr const char* kAllocated = "allocated";

struct AllocateOptions {
  std::vector<std::string> files;
  std::vector<std::string> codecs = allocation_codecs();
  double bits = 2;
  unsigned threads = 0;
  std::filesystem::path json;
};

/// The parameters of all samples, and their shapes.
struct MeasuredModel {
  std::vector<AllocationParameter> parameters;
  std::vector<Tensor> shapes;  // without values
};

/// Sums over all parameters.
struct Total {
  std::size_t count = 0, bytes = 0;
  double energy = 0, lost = 0;

  double bits() const { return 8 * static_cast<double>(bytes) / static_cast<double>(count); }
  double share() const { return energy == 0 ? 0 : lost / energy; }
};

std::vector<Tensor> read_gradients(const std::string& file) {
  if (!is_tensor_file(file))
    throw InvalidArgumentError(
        fmt::format("{}: gradients come from FILE.npy or FILE.safetensors, e.g. of `tersor-bench "
                    "train --gradients FILE.safetensors`",
                    file));
  return read_tensors(file);
}

void check_same_tensors(const AllocateOptions& options, const std::string& file,
                        const std::vector<Tensor>& tensors, const std::vector<Tensor>& shapes) {
  const auto equal = [](const Tensor& a, const Tensor& b) {
    return a.name == b.name && a.shape == b.shape;
  };
  if (!std::ranges::equal(tensors, shapes, equal))
    throw InvalidArgumentError(
        fmt::format("{}: does not hold the tensors of {}: give the gradients of one "
                    "network, of several steps, with the same names and shapes",
                    file, options.files.front()));
}

MeasuredModel measure_all(const AllocateOptions& options) {
  Threads threads(options.threads);
  MeasuredModel found;
  for (const std::string& file : options.files) {
    std::vector<Tensor> tensors = read_gradients(file);
    const bool first = found.shapes.empty();
    if (!first) check_same_tensors(options, file, tensors, found.shapes);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
      AllocationParameter sample = measure_candidates(
          {tensor.name, tensor.values, tensor.rows(), tensor.columns()}, options.codecs, &threads);
      if (!first) {
        add_sample(found.parameters[i], sample);
        continue;
      }
      found.parameters.push_back(std::move(sample));
      found.shapes.push_back({tensor.name, {}, tensor.shape});
    }
  }
  return found;
}

const AllocationCandidate* find(const AllocationParameter& parameter, const std::string& spec) {
  const auto found = std::ranges::find(parameter.candidates, spec, &AllocationCandidate::codec);
  return found == parameter.candidates.end() ? nullptr : &*found;
}

/// The total of a reducer with this single codec; empty if a codec of the reducer was not measured.
std::optional<Total> uniform(const MeasuredModel& measured, const std::string& spec) {
  const ReducerOptions options{.codec = spec};
  Rules rules(options);
  Total total;
  for (std::size_t i = 0; i < measured.parameters.size(); ++i) {
    const AllocationParameter& parameter = measured.parameters[i];
    const Tensor& shape = measured.shapes[i];
    const RuleChoice choice = rules.choose({.name = parameter.name,
                                            .count = parameter.count,
                                            .rows = shape.rows(),
                                            .columns = shape.columns()});
    const AllocationCandidate* sent = find(parameter, choice.codec->spec().text());
    if (sent == nullptr) return {};
    total.count += parameter.count;
    total.bytes += sent->bytes;
    total.energy += parameter.energy;
    total.lost += sent->energy_lost;
  }
  return total;
}

Total total_of(const Allocation& allocation) {
  return {allocation.count, allocation.bytes, allocation.energy, allocation.energy_lost};
}

/// An allocation of at most this many bits; empty if no allocation fits.
std::optional<Total> allocated(const MeasuredModel& measured, double bits) try {
  return total_of(allocate(measured.parameters, bits));
} catch (const InvalidArgumentError&) {
  return {};
}

std::string data_text(const AllocateOptions& options) {
  std::vector<std::string> names;
  for (const std::string& file : options.files)
    names.push_back(std::filesystem::path(file).filename().string());
  return fmt::format("{}", fmt::join(names, ", "));
}

class Writer {
 public:
  Writer(const AllocateOptions& options, const MeasuredModel& measured, RecordFile& file)
      : options_(options), measured_(measured), file_(file) {}

  void parameters(const Allocation& allocation) {
    const auto& parameters = measured_.parameters;
    const std::size_t width = longest(parameters, &AllocationParameter::name);
    const Lines table({{"parameter", "", width, Align::kLeft},
                       {"count", "values", 8},
                       {"codec", "", longest(options_.codecs), Align::kLeft},
                       {"bits", "per value", 9},
                       {"error", "of its own", 10},
                       {"error", "of all", 8}});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const AllocationParameter& parameter = parameters[i];
      for (std::size_t k = 0; k < parameter.candidates.size(); ++k)
        add(parameter.name, parameter.candidates[k].codec, of(parameter, k),
            k == allocation.chosen[i]);
      const AllocationCandidate& chosen = parameter.candidates[allocation.chosen[i]];
      const Total own = of(parameter, allocation.chosen[i]);
      const Total all{parameter.count, chosen.bytes, allocation.energy, chosen.energy_lost};
      table.print({parameter.name, format_count(parameter.count), chosen.codec,
                   fmt::format("{:.3f}", own.bits()), format_error(own.share()),
                   format_error(all.share())});
    }
  }

  /// Prints each codec for all parameters next to an allocation of as many bytes.
  void totals(const Total& chosen) {
    fmt::print("\n{}: {}, {:.3f} bits per value, relative squared error {}\n\n", kAllocated,
               format_bytes(static_cast<double>(chosen.bytes)), chosen.bits(),
               format_error(chosen.share()));
    add(nullptr, kAllocated, chosen, true);
    const Lines table({{"one codec for all", "", longest(options_.codecs), Align::kLeft},
                       {"bits", "per value", 9},
                       {"squared", "error", 9},
                       {"allocated", "as many bits", 12},
                       {"squared", "error", 9}});
    for (const std::string& spec : options_.codecs)
      if (const std::optional<Total> all = uniform(measured_, spec))
        table.print(comparison_row(spec, *all));
    file_.add_all(std::move(records_));
  }

 private:
  std::vector<std::string> comparison_row(const std::string& spec, const Total& all) {
    std::vector<std::string> cells = {spec, fmt::format("{:.3f}", all.bits()),
                                      format_error(all.share()), "-", "-"};
    add(nullptr, spec, all, false);
    if (const std::optional<Total> best = allocated(measured_, all.bits())) {
      add(nullptr, kAllocated, *best, false);
      cells[3] = fmt::format("{:.3f}", best->bits());
      cells[4] = format_error(best->share());
    }
    return cells;
  }

  static Total of(const AllocationParameter& parameter, std::size_t candidate) {
    const AllocationCandidate& one = parameter.candidates[candidate];
    return {parameter.count, one.bytes, parameter.energy, one.energy_lost};
  }

  void add(const Record& parameter, const std::string& codec, const Total& total, bool chosen) {
    records_.push_back({{"benchmark", "allocate"},
                        {"codec", codec},
                        {"data", data_text(options_)},
                        {"parameter", parameter},
                        {"count", total.count},
                        {"payload_bytes", total.bytes},
                        {"energy", total.energy},
                        {"energy_lost", total.lost},
                        {"chosen", chosen}});
  }

  const AllocateOptions& options_;
  const MeasuredModel& measured_;
  RecordFile& file_;
  std::vector<Record> records_;
};

/// A literal in both C++ and Python.
std::string quoted(const std::string& text) {
  return Record(text).dump(-1, ' ', false, Record::error_handler_t::replace);
}

void print_rules(const std::vector<ReducerRule>& rules) {
  fmt::print("\nRules, in C++ (tersor::ReducerOptions):\n\n    .rules = {{\n");
  for (const ReducerRule& rule : rules)
    fmt::print("        {{{}, {}}},\n", quoted(rule.pattern), quoted(rule.codec));
  fmt::print("    }}\n\nand in Python:\n\n    rules=[\n");
  for (const ReducerRule& rule : rules)
    fmt::print("        ({}, {}),\n", quoted(rule.pattern), quoted(rule.codec));
  fmt::print("    ]\n\n");
}

void note_zeros(const MeasuredModel& measured) {
  for (const AllocationParameter& one : measured.parameters)
    if (one.energy == 0)
      fmt::print("\n{}: all values are zero: pass gradients of later steps\n", one.name);
}

std::string canonical(const std::string& spec) { return make_codec(spec)->spec().text(); }

void run_allocate(AllocateOptions options) {
  std::ranges::transform(options.codecs, options.codecs.begin(), canonical);
  options.codecs = deduplicated(options.codecs);
  RecordFile file(options.json);
  const MeasuredModel measured = measure_all(options);
  const Allocation allocation = allocate(measured.parameters, options.bits);
  Writer writer(options, measured, file);
  fmt::print("{}; {} bits per value of {}\n\n", machine_name(), options.bits, data_text(options));
  writer.parameters(allocation);
  note_zeros(measured);
  writer.totals(total_of(allocation));
  print_rules(allocation.rules);
}

}  // namespace

void add_allocate_command(CLI::App& program) {
  const auto options = std::make_shared<AllocateOptions>();
  CLI::App& command = *program.add_subcommand(
      "allocate",
      "Chooses a codec for each parameter: the least squared error for a budget of bits");
  command
      .add_option("--gradients", options->files,
                  "Tensors of one network, FILE.npy or FILE.safetensors; of several "
                  "steps or ranks: one file each, whose energies are added")
      ->required()
      ->type_name("FILE");
  add(command, "--bits", options->bits, "Maximum bits per value of a payload", "BITS",
      above_zero());
  add_codecs(command, options->codecs);
  add_codec_threads(command, options->threads);
  add_json(command, options->json);
  command.callback([options] { run_allocate(*options); });
}

}  // namespace tersor::bench
