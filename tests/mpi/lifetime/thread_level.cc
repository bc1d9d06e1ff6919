// A transport or the benchmark must not change the program's MPI thread level, and the program's
// threads continue to use MPI in parallel. A separate program, because a process has a single
// level.
// usage: tersor_mpi_thread_level LEVEL, 0 (MPI_THREAD_SINGLE) to 3 (MPI_THREAD_MULTIPLE)
#include <mpi.h>
#include <tersor/mpi.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bench/ranks/mpi/library_sum.h"

namespace {

constexpr int kThreads = 3, kExchanges = 500;

int rank_of_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Both ranks exchange numbers with a tag. Returns false after a wrong number.
bool swaps(int tag) {
  const int peer = 1 - rank_of_world();
  bool right = true;
  for (int number = 0; number < kExchanges; ++number) {
    const std::array<int, 2> own{tag, number};
    std::array<int, 2> other{};
    MPI_Sendrecv(own.data(), 2, MPI_INT, peer, tag, other.data(), 2, MPI_INT, peer, tag,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    right &= other == own;
  }
  return right;
}

/// Exchanges on program threads during `work`, if the thread level allows several threads.
bool swaps_beside(int level, const std::function<void()>& work) {
  std::array<bool, kThreads> right{};
  right.fill(true);
  {
    std::vector<std::jthread> threads;
    for (int tag = 0; level == MPI_THREAD_MULTIPLE && tag < kThreads; ++tag)
      threads.emplace_back([&right, tag] { right[static_cast<std::size_t>(tag)] = swaps(tag); });
    work();
  }
  return right == std::array{true, true, true} && swaps(kThreads);
}

bool keeps(int level, const char* after) {
  int now = -1;
  MPI_Query_thread(&now);
  if (now != level) std::printf("after %s the level is %d, not %d\n", after, now, level);
  return now == level;
}

bool keeps_beside_transports(int level) {
  bool right = true;
  right &= swaps_beside(level, [&] {
    for (int round = 0; round < 3; ++round) {
      const auto owned_transport = tersor::make_mpi_transport(MPI_COMM_WORLD);
      tersor::Transport& transport = *owned_transport;
      right &= keeps(level, "a transport was made");
      transport.barrier({.name = "test"}).wait_synchronize();
      right &= keeps(level, "a barrier");
    }
  });
  return keeps(level, "the transports ended") && right && swaps_beside(level, [] {});
}

bool keeps_beside_library_sum(int level) {
  bool right = true;
  std::vector<float> values(100, 1);
  {
    tersor::bench::LibrarySum sum;
    right &= keeps(level, "MPI's algorithms were found");
    sum.add(values);
  }
  return keeps(level, "MPI's own sum") && right && values[0] == 2;
}

}  // namespace

int main(int argc, char** argv) {
  const int level = argc > 1 ? std::atoi(argv[1]) : MPI_THREAD_MULTIPLE;
  tersor::bench::LibrarySum::prepare();
  int given = -1;
  MPI_Init_thread(&argc, &argv, level, &given);
  bool right = keeps(level, "MPI_Init_thread");
  right &= keeps_beside_transports(level);
  right &= keeps_beside_library_sum(level);
  right &= swaps_beside(level, [] {});
  MPI_Finalize();
  return right ? 0 : 1;
}
