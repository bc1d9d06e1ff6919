
#include "bench/processes/rank_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tersor/error.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

namespace tersor::bench {
namespace {

std::string_view value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

int number_of(const char* variable) {
  const std::string_view text = value_of(variable);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw InvalidArgumentError(fmt::format("{}=\"{}\" is no number", variable, text));
  return number;
}

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPollInterval{5};

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Returns this process's environment with new values for some variables.
std::vector<std::string> environment_with(const Variables& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  for (const auto& [name, value] : variables) {
    const std::string key = name + "=";
    std::erase_if(all, [&](const std::string& entry) { return entry.starts_with(key); });
    all.push_back(key + value);
  }
  return all;
}

/// Returns pointers to `words` and a final null, as expected by the system's calls.
std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

/// The destination of a new process's output.
class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;

  void silence() {
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  void write_to(const std::filesystem::path& file) {
    constexpr int kMode = 0600;
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, file.c_str(), O_WRONLY | O_CREAT,
                                     kMode);
    posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
  }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

int status_of(int wait_status) {
  constexpr int kSignalled = 128;
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : kSignalled + WTERMSIG(wait_status);
}

}  // namespace

Variables RankIdentity::variables(const char* file_variable) const {
  return {{kRankVariable, std::to_string(rank)},
          {kRanksVariable, std::to_string(ranks)},
          {file_variable, file.string()}};
}

std::optional<RankIdentity> identity_of_process(const char* file_variable) {
  constexpr std::pair<const char*, const char*> kVariables[] = {
      {kRankVariable, kRanksVariable},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_NTASKS"}};
  const std::string_view file = value_of(file_variable);
  for (const auto& [rank, ranks] : kVariables) {
    if (value_of(rank).empty() || (file.empty() && rank != kRankVariable)) continue;
    const RankIdentity identity{number_of(rank), number_of(ranks), file};
    if (identity.rank < 0 || identity.rank >= identity.ranks)
      throw InvalidArgumentError(
          fmt::format("{}={} is no rank of {}={}", rank, identity.rank, ranks, identity.ranks));
    if (!file.empty()) return identity;
    throw InvalidArgumentError(
        fmt::format("{} is not set: name a file that all ranks reach, and that is not there yet",
                    file_variable));
  }
  if (file.empty()) return std::nullopt;
  throw InvalidArgumentError(fmt::format(
      "{} is set, but neither {} nor a launcher's variable: which rank is this process?",
      file_variable, kRankVariable));
}

Variables shared_device_variables(int rank, int ranks, int devices) {
  if (devices >= ranks) return {};
  return {{"NCCL_HOSTID", fmt::format("tersor-rank-{}", rank)},
          {"NCCL_NET", "Socket"},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_MNNVL_ENABLE", "0"},
          {"NCCL_NVLS_ENABLE", "0"},
          {"NCCL_MAX_CTAS", "2"}};
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "tersor-ranks-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw Error(fmt::format("cannot make a folder {}: {}", name, std::strerror(errno)));
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

RankProcesses::RankProcesses(const RankCommand& command)
    : output_(command.output), first_(command.first) {
  try {
    for (int rank = command.first; rank < command.ranks; ++rank) start(command, rank);
  } catch (...) {
    kill_all();
    throw;
  }
}

RankProcesses::~RankProcesses() { kill_all(); }

std::filesystem::path RankProcesses::output_file(int rank) const {
  return folder_.path() / fmt::format("rank-{}.txt", rank);
}

void RankProcesses::start(const RankCommand& command, int rank) {
  Variables variables = RankIdentity{rank, command.ranks, file()}.variables(command.file_variable);
  const Variables shared = shared_device_variables(rank, command.ranks, command.devices);
  variables.insert(variables.end(), shared.begin(), shared.end());
  variables.insert(variables.end(), command.variables.begin(), command.variables.end());
  std::vector<std::string> words = command.argv, environment = environment_with(variables);
  FileActions actions;
  if (output_ == RankOutput::kCaptured) actions.write_to(output_file(rank));
  if (output_ == RankOutput::kFirstOnly && rank != 0) actions.silence();
  Rank started;
  const int error = posix_spawn(&started.process, words.front().c_str(), actions.get(), nullptr,
                                pointers(words).data(), pointers(environment).data());
  if (error != 0)
    throw Error(fmt::format("cannot start {}: {}", words.front(), std::strerror(error)));
  ranks_.push_back(std::move(started));
}

/// Records the processes that have ended. Returns true if all processes have ended.
bool RankProcesses::reap() {
  for (Rank& rank : ranks_) {
    int status = 0;
    if (rank.process == 0 || waitpid(rank.process, &status, WNOHANG) == 0) continue;
    rank.process = 0;
    rank.result.status = status_of(status);
  }
  return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.process == 0; });
}

void RankProcesses::kill_all() {
  for (Rank& rank : ranks_) {
    if (rank.process == 0) continue;
    kill(rank.process, SIGKILL);
    int status = 0;
    waitpid(rank.process, &status, 0);
    rank.process = 0;
    rank.result = {.status = status_of(status), .timed_out = true};
  }
}

std::vector<RankResult> RankProcesses::wait(const RankLimits& limits) {
  SteadyClock::time_point end = SteadyClock::now() + limits.all;
  bool failed = false;
  while (!reap() && SteadyClock::now() < end) {
    const bool fails = std::ranges::any_of(
        ranks_, [](const Rank& rank) { return rank.process == 0 && rank.result.status != 0; });
    if (fails && !failed) end = std::min(end, SteadyClock::now() + limits.after_failure);
    failed = fails;
    std::this_thread::sleep_for(kPollInterval);
  }
  kill_all();
  std::vector<RankResult> results;
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    results.push_back(ranks_[index].result);
    if (output_ == RankOutput::kCaptured)
      results.back().output = text_of(output_file(first_ + static_cast<int>(index)));
  }
  return results;
}

std::vector<std::string> own_command() {
  const std::string text = text_of("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::size_t first = 0; first < text.size(); first += words.back().size() + 1)
    words.emplace_back(text.c_str() + first);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  if (words.empty()) return {program};
  words.front() = program;
  return words;
}

void run_rank_processes(int ranks, int devices) {
  RankProcesses processes({.argv = own_command(), .ranks = ranks, .devices = devices});
  const std::vector<RankResult> results = processes.wait();
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    if (results[rank].status != 0)
      throw Error(fmt::format("rank {} ended with exit status {}", rank, results[rank].status));
}

}  // namespace tersor::bench
