// Implements processes.h.
#include "tests/faults/processes.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/support/children.h"

namespace tersor::faults {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto kTold = 60s;

}  // namespace

Processes::Processes(int ranks, Run run) : run_(std::move(run)) {
  std::string name = (fs::temp_directory_path() / "tersor-faults-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder");
  folder_ = name;
  for (int rank = 0; rank < ranks; ++rank) start(rank);
}

Processes::~Processes() {
  for (const pid_t process : processes_) kill(process, SIGKILL);
  for (const pid_t process : processes_) waitpid(process, nullptr, 0);
  fs::remove_all(folder_);
}

fs::path Processes::report(int rank) const { return folder_ / ("report-" + std::to_string(rank)); }

bool Processes::all_told(const std::set<int>& fatal) const {
  for (int rank = 0; rank < static_cast<int>(processes_.size()); ++rank)
    if (!fatal.contains(rank) && !fs::exists(report(rank))) return false;
  return true;
}

std::vector<std::optional<std::vector<std::string>>> Processes::wait(
    const std::set<int>& fatal) const {
  const auto until = std::chrono::steady_clock::now() + kTold;
  while (!all_told(fatal) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(5ms);
  std::vector<std::optional<std::vector<std::string>>> told(processes_.size());
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    std::ifstream stream(report(static_cast<int>(rank)));
    if (!stream) continue;
    told[rank].emplace();
    for (std::string line; std::getline(stream, line);) told[rank]->push_back(line);
  }
  return told;
}

void Processes::start(int rank) {
  processes_.push_back(test::fork_rank(rank, [&] { tell(rank, run_(rank, folder_)); }));
}

void Processes::tell(int rank, const std::vector<std::string>& lines) const {
  const fs::path part = report(rank).string() + ".part";
  {
    std::ofstream stream(part);
    for (const std::string& line : lines) stream << line << "\n";
  }
  fs::rename(part, report(rank));
}

}  // namespace tersor::faults
