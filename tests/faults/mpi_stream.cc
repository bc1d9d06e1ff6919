// Sums long gradients on several processes until an error, and prints lines of JSON. Used for
// network faults, because no rank can cause network faults itself.
// Usage: mpirun -n RANKS mpi_stream TIMEOUT_MS [MEETING]
// By default, ranks use MPI. If MEETING (the name of a new file) is given, ranks use TCP.
#include <mpi.h>
#include <tersor/collectives.h>
#include <tersor/mpi.h>
#include <tersor/tcp.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using namespace tersor;
using nlohmann::json;

constexpr std::size_t kCount = std::size_t{1} << 20;  // 4 MiB

void print(const json& line) { std::cout << line.dump() + "\n" << std::flush; }

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// All ranks provide ones, so the sum is known. Returns false if the sum is wrong.
bool sum_once(Transport& transport, const CollectiveOptions& options) {
  std::vector<float> gradient(kCount, 1.0f);
  allreduce(transport, gradient, options);
  return gradient == std::vector<float>(kCount, static_cast<float>(transport.ranks()));
}

/// The error of one call, or empty.
std::string error_of(Transport& transport, const CollectiveOptions& options) try {
  return sum_once(transport, options) ? "" : "a wrong sum";
} catch (const Error& error) {
  return error.what();
}

/// Sums until the first error, then once more.
void stream(Transport& transport, const CollectiveOptions& options) {
  std::string error;
  Clock::time_point begun;
  for (int step = 0; error.empty(); ++step) {
    print({{"event", "step"}, {"rank", transport.rank()}, {"step", step}, {"pid", getpid()}});
    begun = Clock::now();
    error = error_of(transport, options);
  }
  json line = {{"event", "end"},
               {"rank", transport.rank()},
               {"message", error},
               {"seconds", seconds_since(begun)}};
  const auto later = Clock::now();
  line["later"] = error_of(transport, options);
  line["later_seconds"] = seconds_since(later);
  print(line);
}

std::unique_ptr<Transport> transport_at(const char* meeting) {
  if (meeting == nullptr) return make_mpi_transport(MPI_COMM_WORLD);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return make_tcp_transport(meeting, rank, ranks);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "usage: mpi_stream TIMEOUT_MS [MEETING]\n";
    return 2;
  }
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  const auto transport = transport_at(argc == 3 ? argv[2] : nullptr);
  stream(*transport, {.codec = "none", .timeout = std::chrono::milliseconds(std::stoi(argv[1]))});
  _exit(0);  // MPI_Finalize would wait for unreachable ranks
}
