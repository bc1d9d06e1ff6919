// Implements command_line.h.

#include "bench/common/command_line.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "bench/processes/rank_identity.h"

namespace tersor::bench {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

/// CLI11's own ranges print the limits of double with 309 digits and accept NaN.
template <typename Accepts>
Check number_that(std::string is, Accepts accepts) {
  return [is = std::move(is), accepts](const std::string& text) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const bool read = !text.empty() && *end == '\0' && std::isfinite(number);
    if (read && accepts(number)) return text;
    throw InvalidArgumentError(fmt::format("{} is no number {}", text, is));
  };
}

Check check_of(const CLI::Validator& validator) {
  return [validator](const std::string& text) {
    std::string changed = text;
    const std::string error = validator(changed);
    if (!error.empty()) throw InvalidArgumentError(error);
    return changed;
  };
}

/// The validator has no text in the help.
CLI::Validator validator_of(const Check& check) {
  const auto apply = [check](std::string& text) -> std::string {
    try {
      text = check(text);
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  return CLI::Validator(apply, "");
}

/// The command chosen by the arguments; otherwise the program.
const CLI::App& chosen(const CLI::App& program) {
  const auto commands = program.get_subcommands();
  return commands.empty() ? program : *commands.front();
}

std::string option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    names.push_back(option->get_name(false, false));
  return fmt::format("{}", fmt::join(names, " "));
}

std::string command_names(const CLI::App& program) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands(nullptr))
    names.push_back(command->get_name());
  return fmt::format("{}", fmt::join(names, " "));
}

/// CLI11's message, except for unknown arguments.
std::string what_was_wrong(const CLI::App& program, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = program.remaining(true);
  if (unknown.empty()) return error.what();
  return fmt::format("not known here: {}", fmt::join(unknown, " "));
}

void report_usage(const CLI::App& program, const std::string& message) {
  const CLI::App& command = chosen(program);
  const bool is_program = &command == &program;
  fmt::print(stderr, "{}{}: {}\n", program.get_name(), is_program ? "" : " " + command.get_name(),
             message);
  if (is_program && !program.get_subcommands(nullptr).empty())
    fmt::print(stderr, "The commands are: {}\n", command_names(program));
  fmt::print(stderr, "The options are: {}\n", option_names(command));
}

/// Returns the rank from a launcher or from the starting rank; empty without one.
std::string own_rank() {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", kRankVariable})
    if (const char* rank = std::getenv(name)) return rank;
  return "";
}

constexpr std::chrono::seconds kForOtherRanks{1};

/// All ranks make the same usage error. Rank 0 explains it, and a launcher then ends the others.
void report_usage_once(const CLI::App& program, const std::string& message) {
  const std::string rank = own_rank();
  if (rank.empty() || rank == "0") return report_usage(program, message);
  std::this_thread::sleep_for(kForOtherRanks);
  fmt::print(stderr, "{}: rank {}: {}\n", program.get_name(), rank, message);
}

/// Every failing rank prints the reason. A launcher ends all ranks after the end of one, so each
/// rank leaves the others time to print.
void report(const CLI::App& program, const std::string& message) {
  const std::string rank = own_rank();
  fmt::print(stderr, "{}: {}{}\n", program.get_name(),
             rank.empty() || rank == "0" ? "" : "rank " + rank + ": ", message);
  if (!rank.empty()) std::this_thread::sleep_for(kForOtherRanks);
}

}  // namespace

Check one_of(const std::vector<std::string>& names) {
  return [names](const std::string& name) {
    if (std::ranges::find(names, name) != names.end()) return name;
    throw InvalidArgumentError(
        fmt::format("no \"{}\"; there are: {}", name, fmt::join(names, " | ")));
  };
}

Check size_suffix(const Check& check) {
  return [number = check_of(CLI::AsSizeValue(false)), check](const std::string& text) {
    return check(number(text));
  };
}

Check above_zero() {
  return number_that("above 0", [](double number) { return number > 0; });
}

Check from_to(double least, double most) {
  return number_that(fmt::format("from {} to {}", least, most),
                     [=](double number) { return number >= least && number <= most; });
}

Check existing_file() { return check_of(CLI::ExistingFile); }

Argument& Argument::transform(const Check& check) {
  option_->transform(validator_of(check));
  return *this;
}

Argument& Argument::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Argument& Argument::takes(const std::string& name) {
  option_->type_name(name)->capture_default_str();
  return *this;
}

Argument& Argument::delimiter(char between_values) {
  option_->delimiter(between_values);
  return *this;
}

Argument& Argument::take_last() {
  option_->take_last();
  return *this;
}

Argument& Argument::required() {
  option_->required();
  return *this;
}

Argument& Argument::needs(const Argument& other) {
  option_->needs(other.option_);
  return *this;
}

Argument& Argument::excludes(const std::string& other) {
  option_->excludes(other);
  return *this;
}

Command Command::add_subcommand(const std::string& name, const std::string& description) {
  app_->require_subcommand(1);
  return Command(app_->add_subcommand(name, description));
}

template <typename Value>
Argument Command::add_option(const std::string& names, Value& value,
                             const std::string& description) {
  return Argument(app_->add_option(names, value, description));
}

template Argument Command::add_option(const std::string&, int&, const std::string&);
template Argument Command::add_option(const std::string&, std::optional<int>&, const std::string&);
template Argument Command::add_option(const std::string&, unsigned&, const std::string&);
template Argument Command::add_option(const std::string&, std::uint64_t&, const std::string&);
template Argument Command::add_option(const std::string&, double&, const std::string&);
template Argument Command::add_option(const std::string&, std::string&, const std::string&);
template Argument Command::add_option(const std::string&, std::filesystem::path&,
                                      const std::string&);
template Argument Command::add_option(const std::string&, std::vector<int>&, const std::string&);
template Argument Command::add_option(const std::string&, std::vector<std::uint64_t>&,
                                      const std::string&);
template Argument Command::add_option(const std::string&, std::vector<unsigned>&,
                                      const std::string&);
template Argument Command::add_option(const std::string&, std::vector<std::string>&,
                                      const std::string&);

Argument Command::add_option_function(const std::string& names,
                                      std::function<void(const std::vector<std::string>&)> take,
                                      const std::string& description) {
  return Argument(
      app_->add_option_function<std::vector<std::string>>(names, std::move(take), description));
}

Argument Command::add_flag(const std::string& name, bool& value, const std::string& description) {
  return Argument(app_->add_flag(name, value, description));
}

void Command::callback(std::function<void()> run) { app_->callback(std::move(run)); }

int run_command(const Program& of, int argc, const char* const* argv) {
  CLI::App program(of.description, of.name);
  of.add(Command(&program));
  try {
    program.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& success) {  // for --help
    return program.exit(success);
  } catch (const CLI::ParseError& error) {
    report_usage_once(program, what_was_wrong(program, error));
    return kUsage;
  } catch (const InvalidArgumentError& error) {
    report(program, error.what());
    return kUsage;
  } catch (const std::exception& error) {
    report(program, error.what());
    return kFailed;
  }
}

}  // namespace tersor::bench
