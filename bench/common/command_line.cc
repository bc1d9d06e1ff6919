// Implements command_line.h.

#include "bench/common/command_line.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "bench/processes/rank_processes.h"

namespace tersor::bench {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

/// CLI11's own ranges print the limits of double with 309 digits and accept NaN.
template <typename Accepts>
CLI::Validator number_where(std::string is, Accepts accepts) {
  return checked([is = std::move(is), accepts](const std::string& text) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const bool read = !text.empty() && *end == '\0' && std::isfinite(number);
    if (read && accepts(number)) return text;
    throw InvalidArgumentError(fmt::format("{} is no number {}", text, is));
  });
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
std::string parse_error_text(const CLI::App& program, const CLI::ParseError& error) {
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

/// Returns the rank from a launcher or from the starting rank; empty without a launcher.
std::string own_rank() {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", kRankVariable})
    if (const char* rank = std::getenv(name)) return rank;
  return "";
}

constexpr std::chrono::seconds kOutputGrace{1};

/// All ranks make the same usage error. Rank 0 explains it, and a launcher then ends the others.
void report_usage_once(const CLI::App& program, const std::string& message) {
  const std::string rank = own_rank();
  if (rank.empty() || rank == "0") return report_usage(program, message);
  std::this_thread::sleep_for(kOutputGrace);
  fmt::print(stderr, "{}: rank {}: {}\n", program.get_name(), rank, message);
}

/// Every failing rank prints the reason. A launcher ends all ranks after the end of one, so each
/// rank leaves the others time to print.
void report(const CLI::App& program, const std::string& message) {
  const std::string rank = own_rank();
  fmt::print(stderr, "{}: {}{}\n", program.get_name(),
             rank.empty() || rank == "0" ? "" : "rank " + rank + ": ", message);
  if (!rank.empty()) std::this_thread::sleep_for(kOutputGrace);
}

}  // namespace

// The validator has no text in the help.
CLI::Validator checked(const std::function<std::string(const std::string& text)>& check) {
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

CLI::Validator one_of(const std::vector<std::string>& names) {
  return checked([names](const std::string& name) {
    if (std::ranges::find(names, name) != names.end()) return name;
    throw InvalidArgumentError(
        fmt::format("no \"{}\"; there are: {}", name, fmt::join(names, " | ")));
  });
}

CLI::Validator above_zero() {
  return number_where("above 0", [](double number) { return number > 0; });
}

CLI::Validator within(double min, double max) {
  return number_where(fmt::format("from {} to {}", min, max),
                      [=](double number) { return number >= min && number <= max; });
}

CLI::Validator size_suffix(const CLI::Validator& check) {
  const auto apply = [number = CLI::AsSizeValue(false), check](std::string& text) {
    const std::string error = number(text);
    return error.empty() ? check(text) : error;
  };
  return CLI::Validator(apply, "");
}

int run_command(CLI::App& program, int argc, const char* const* argv) {
  try {
    program.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& success) {  // for --help
    return program.exit(success);
  } catch (const CLI::ParseError& error) {
    report_usage_once(program, parse_error_text(program, error));
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
