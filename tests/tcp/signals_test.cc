// Signals of a program must interrupt the program's own threads only, not the library's threads.
#include <tersor/reducer.h>
#include <tersor/threads.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "tests/tcp/meeting.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

namespace fs = std::filesystem;

/// Threads of this process with `signal` unblocked.
std::set<std::string> threads_that_take(int signal) {
  std::set<std::string> found;
  for (const auto& thread : fs::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string word; status >> word;)
      if (word == "SigBlk:" && status >> word &&
          ((std::stoull(word, nullptr, 16) >> (signal - 1)) & 1) == 0)
        found.insert(thread.path().filename().string());
  }
  return found;
}

std::size_t threads() {
  const fs::directory_iterator all("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Shared by the ranks of one process; their threads wait for each other.
class Look {
 public:
  explicit Look(int ranks) : meeting_(ranks), expected_(threads_that_take(SIGTERM)) {}

  void note_own_thread() {
    const std::lock_guard lock(mutex_);
    expected_.insert(std::to_string(gettid()));
  }

  /// Repeats the check for a while. A joined thread stays listed for a moment, and glibc blocks all
  /// signals in a thread during the start of another thread.
  void expect_only_own_ones(const Transport& transport, int others_a_rank) {
    meeting_.arrive_and_wait();
    if (transport.rank() == 0) {
      for (int i = 0; i < 1000 && threads_that_take(SIGTERM) != expected_; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(threads_that_take(SIGTERM), expected_);
      EXPECT_GE(threads(),
                expected_.size() + static_cast<std::size_t>(others_a_rank * transport.ranks()))
          << "not all that is looked for was there";
    }
    meeting_.arrive_and_wait();
  }

 private:
  std::barrier<> meeting_;
  std::mutex mutex_;
  std::set<std::string> expected_;
};

// Threads of an unused transport, of a reducer, and of a pool.
TEST(Signals, InterruptOnlyThreadsOfTheProgram) {
  constexpr int kRanks = 2;
  Look look(kRanks);
  run_ranks(tcp_transports(kRanks), [&](Transport& transport) {
    look.note_own_thread();
    look.expect_only_own_ones(transport, 1);
    std::vector<float> gradient(1000, 1.0f);
    GradientReducer reducer(transport, {});
    reducer.add("w", gradient);
    reducer.ready("w");
    reducer.wait();
    const Threads pool(2);
    look.expect_only_own_ones(transport, 2);
  });
}

}  // namespace
}  // namespace tersor::test
