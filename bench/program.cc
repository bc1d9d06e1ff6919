// Puts the commands together and turns errors into messages and exit codes.

#include "bench/program.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/commands.h"
#include "bench/processes/rank_place.h"

namespace tersor::bench {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

/// The command that the arguments chose, else the program itself.
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

/// CLI11's own words, but for arguments that nothing knows.
std::string what_was_wrong(const CLI::App& program, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = program.remaining(true);
  if (unknown.empty()) return error.what();
  return fmt::format("not known here: {}", fmt::join(unknown, " "));
}

/// False for the processes of a launcher but the first, which speaks for all of wrong usage. Those
/// wait a little before they end: launchers end all as soon as one does.
bool speaks() {
  constexpr std::chrono::seconds kToSpeak{1};
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", kRankVariable})
    if (const char* rank = std::getenv(name)) {
      if (std::string_view(rank) == "0") return true;
      std::this_thread::sleep_for(kToSpeak);
      return false;
    }
  return true;
}

int report_usage(const CLI::App& program, const std::string& message) {
  if (!speaks()) return kUsage;
  const CLI::App& command = chosen(program);
  const bool is_program = &command == &program;
  fmt::print(stderr, "tersor-bench{}: {}\n", is_program ? "" : " " + command.get_name(), message);
  if (is_program) fmt::print(stderr, "The commands are: {}\n", command_names(program));
  fmt::print(stderr, "The options are: {}\n", option_names(command));
  return kUsage;
}

int parse_and_run(CLI::App& program, int argc, const char* const* argv) {
  try {
    program.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& success) {  // --help
    return program.exit(success);
  } catch (const CLI::ParseError& error) {
    return report_usage(program, what_was_wrong(program, error));
  } catch (const InvalidArgument& error) {
    if (speaks()) fmt::print(stderr, "tersor-bench: {}\n", error.what());
    return kUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tersor-bench: {}\n", error.what());
    return kFailed;
  }
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  CLI::App program(
      "Measures gradient codecs, compressed collectives, and training with them.\n"
      "docs/benchmarks.md explains every option and every figure.",
      "tersor-bench");
  program.require_subcommand(1);
  add_codecs_command(program);
  add_allreduce_command(program);
  add_collectives_command(program);
  add_allocate_command(program);
  add_predict_command(program);
#if TERSOR_BENCH_TRAINING
  add_train_command(program);
#endif
  add_report_command(program);
  return parse_and_run(program, argc, argv);
}

}  // namespace tersor::bench
