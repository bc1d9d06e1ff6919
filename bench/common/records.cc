// Writes records, each with command line, machine, date and commit.

#include "bench/common/records.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>

namespace tersor::bench {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

/// The words of this process's command line. Words with other characters than those of paths and
/// options are quoted for a shell.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line;
  for (std::string word; std::getline(file, word, '\0');) {
    const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
      return std::isalnum(c) != 0 ||
             std::string_view("-_./,:=+@%").find(c) != std::string_view::npos;
    });
    std::string quoted;
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += (line.empty() ? "" : " ") + (plain ? word : "'" + quoted + "'");
  }
  return line;
}

}  // namespace

std::string machine_name() {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  return fmt::format("{}, {} core{}", cpu_name(), cores, cores == 1 ? "" : "s");
}

std::string commit_name() { return TERSOR_BENCH_COMMIT; }

RecordFile::RecordFile(std::filesystem::path path) : path_(std::move(path)) {
  if (path_.empty()) return;
  if (!std::ofstream(path_, std::ios::app))
    throw InvalidArgumentError(fmt::format("cannot write {}: {}", path_.string(), strerror(errno)));
}

void RecordFile::add(Record record) { add_all(std::vector<Record>(1, std::move(record))); }

void RecordFile::add_all(std::vector<Record> records) {
  for (Record& record : records) {
    record["command"] = command_line();
    record["machine"] = machine_name();
    record["date"] = utc_now();
    record["commit"] = commit_name();
    records_.push_back(std::move(record));
  }
  if (path_.empty()) return;
  std::ofstream file(path_);
  file << records_.dump(1) << "\n";
  if (!file.flush())
    throw Error(fmt::format("cannot write {}: {}", path_.string(), strerror(errno)));
}

}  // namespace tersor::bench
