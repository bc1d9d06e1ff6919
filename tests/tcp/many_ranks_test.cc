// Many ranks on one machine as processes. All ranks connect with each other, and descriptors,
// threads and memory per rank stay within the numbers of docs/reference/compatibility.md.
// TERSOR_TCP_RANKS=256 selects another number of ranks and prints the measurements.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <tersor/collectives.h>
#include <tersor/tcp.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/children.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr std::size_t kCount = 10'000;  // values to reduce

// ThreadSanitizer adds threads.
#ifdef __SANITIZE_THREAD__
constexpr long kProgramsThreads = 3;
#else
constexpr long kProgramsThreads = 1;
#endif

/// Measurements of a rank.
struct Count {
  double formed_seconds = 0;  ///< from the start until all ranks have met
  double reduced_seconds = 0;
  long files = 0;  ///< additional descriptors
  long threads = 0;
  long threads_of_all = 0;  ///< after all ranks have connected
  long kilobytes = 0;       ///< growth of memory
};

long files() {
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
}

long status(const std::string& name) {
  std::ifstream stream("/proc/self/status");
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(name + ":")) return std::stol(line.substr(name.size() + 1));
  return -1;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The run of a rank. Throws after a wrong sum.
Count take_part(const fs::path& meeting, int rank, int ranks) {
  Count count;
  const long files_before = files(), kilobytes_before = status("RssAnon");
  const auto start = Clock::now();
  const auto owned_transport =
      make_tcp_transport(meeting, rank, ranks, {.address = "127.0.0.1", .timeout = 60s});
  Transport& transport = *owned_transport;
  transport.barrier({.name = "formed"}).wait_synchronize();
  count.formed_seconds = seconds_since(start);
  count.threads = status("Threads");
  std::vector<float> values(kCount, static_cast<float>(rank));
  const ValueSpan span{std::span(values)};
  allreduce(transport, span, {.codec = "none"});
  for (const float value : values)
    if (value != static_cast<float>(ranks * (ranks - 1) / 2)) throw std::runtime_error("wrong sum");
  count.reduced_seconds = seconds_since(start);
  exchange_all(transport, operation_of(transport), pattern(100, rank, 0));
  transport.barrier(operation_of(transport)).wait_synchronize();
  count.files = files() - files_before;
  count.threads_of_all = status("Threads");
  count.kilobytes = status("RssAnon") - kilobytes_before;
  transport.barrier(operation_of(transport)).wait_synchronize();
  return count;
}

void write(const fs::path& file, const Count& count) {
  std::ofstream(file) << count.formed_seconds << " " << count.reduced_seconds << " " << count.files
                      << " " << count.threads << " " << count.threads_of_all << " "
                      << count.kilobytes;
}

int wanted_ranks() {
  const char* wish = std::getenv("TERSOR_TCP_RANKS");
  return wish == nullptr ? 64 : std::stoi(wish);
}

TEST(TcpManyRanks, ConnectAndReduce) {
  const int ranks = wanted_ranks();
  std::string name = (fs::temp_directory_path() / "tersor-tcp-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const fs::path folder = name;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(fork_rank(rank, [&] {
      write(folder / std::to_string(rank), take_part(folder / "meeting", rank, ranks));
    }));
  }
  for (const pid_t process : processes) EXPECT_TRUE(ended_well(process));
  Count most;
  for (int rank = 0; rank < ranks; ++rank) {
    Count count;
    std::ifstream(folder / std::to_string(rank)) >> count.formed_seconds >> count.reduced_seconds >>
        count.files >> count.threads >> count.threads_of_all >> count.kilobytes;
    most.formed_seconds = std::max(most.formed_seconds, count.formed_seconds);
    most.reduced_seconds = std::max(most.reduced_seconds, count.reduced_seconds);
    most.files = std::max(most.files, count.files);
    most.threads = std::max(most.threads, count.threads);
    most.threads_of_all = std::max(most.threads_of_all, count.threads_of_all);
    most.kilobytes = std::max(most.kilobytes, count.kilobytes);
  }
  fs::remove_all(folder);
  std::printf(
      "%d ranks: formed after %.2f s, reduced after %.2f s; a rank has %ld descriptors, %ld "
      "threads, %ld once all are connected, %ld KiB\n",
      ranks, most.formed_seconds, most.reduced_seconds, most.files, most.threads,
      most.threads_of_all, most.kilobytes);
  EXPECT_LE(most.files, ranks - 1 + 16);
  EXPECT_LE(most.threads, kProgramsThreads + 1);
  EXPECT_LE(most.threads_of_all, kProgramsThreads);
}

}  // namespace
}  // namespace tersor::test
