// `tersor-bench report`: passes the records to report/tersor_report.py.

#include "bench/report/report.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <tersor/error.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <system_error>

#include "bench/commands.h"
#include "bench/common/arguments.h"

namespace tersor::bench {
namespace {

namespace fs = std::filesystem;

/// Runs a program of the PATH. Returns the exit status, or -1 if the program cannot be started.
int run_process(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t process = 0;
  if (posix_spawnp(&process, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0)
    return -1;
  int status = 0;
  while (waitpid(process, &status, 0) == -1)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string find_python() {
  const std::string probe =
      "import importlib.util, sys; sys.exit(importlib.util.find_spec('matplotlib') is None)";
  for (const char* python : {"python3", "/usr/bin/python3"})
    if (run_process({python, "-c", probe}) == 0) return python;
  throw Error(
      "no python3 with matplotlib: apt-get install python3-matplotlib, or give --python PATH");
}

/// The script of the installation or, if missing, of the source tree.
fs::path find_script() {
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  const fs::path installed =
      program.parent_path() / TERSOR_BENCH_INSTALLED_REPORT / "tersor_report.py";
  const fs::path source = fs::path(TERSOR_BENCH_SOURCE_REPORT) / "tersor_report.py";
  for (const fs::path& script : {installed, source})
    if (fs::exists(script)) return script;
  throw Error(fmt::format("tersor_report.py is neither at {} nor at {}", installed.string(),
                          source.string()));
}

}  // namespace

void run_report(const ReportProgram& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {
      program.python.empty() ? find_python() : program.python,
      program.script.empty() ? find_script().string() : program.script.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const int status = run_process(words);
  if (status == -1) throw Error("cannot run " + words[0]);
  if (status != 0) throw Error(fmt::format("the report program ended with status {}", status));
}

void check_report_folder(const ReportProgram& program, const fs::path& folder) {
  run_report(program, {"--check", "-o", folder.string()});
}

void add_report_command(CLI::App& program) {
  struct Options {
    std::vector<std::string> files;
    std::string folder;
    bool text = false;
    std::string picture;
    ReportProgram report;
  };
  const auto options = std::make_shared<Options>();
  CLI::App& command = *program.add_subcommand(
      "report", "Draws records of the other commands: one self-contained page, and SVG files");
  command.add_option("files", options->files, "Records, in any mixture")
      ->required()
      ->check(CLI::Validator(CLI::ExistingFile).description(""))
      ->type_name("FILE.json");
  command.add_option("-o,--output", options->folder, "Write index.html and SVG files here")
      ->type_name("DIR");
  command.add_flag("--text", options->text, "Print the tables");
  command
      .add_option("--picture", options->picture,
                  "Write one picture here: of the training, or else of the codecs' errors")
      ->type_name("FILE.png");
  command.add_option("--python", options->report.python, "Python 3 with matplotlib (found)")
      ->type_name("PATH");
  command.callback([options] {
    std::vector<std::string> arguments = options->files;
    if (!options->folder.empty()) arguments.insert(arguments.end(), {"-o", options->folder});
    if (!options->picture.empty())
      arguments.insert(arguments.end(), {"--picture", options->picture});
    if (options->text) arguments.push_back("--text");
    if (arguments.size() == options->files.size())
      throw InvalidArgumentError(
          "report: nothing to do; give -o DIR, --text or --picture FILE.png");
    run_report(options->report, arguments);
  });
}

}  // namespace tersor::bench
