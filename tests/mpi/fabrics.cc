// The fabric of ranks as processes: each process runs its rank's body. Error texts are exchanged,
// so every process knows the errors of all ranks.
#include <mpi.h>
#include <tersor/mpi.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

constexpr std::size_t kTextBytes = 512;

MPI_Comm members = MPI_COMM_NULL;  // the caller's communicator for the current run

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int world_ranks() {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

/// The texts of all processes in rank order.
std::vector<std::string> gathered(const std::string& own) {
  std::vector<char> all(kTextBytes * static_cast<std::size_t>(world_ranks()));
  std::array<char, kTextBytes> text{};
  std::memcpy(text.data(), own.data(), std::min(own.size(), kTextBytes - 1));
  MPI_Allgather(text.data(), kTextBytes, MPI_CHAR, all.data(), kTextBytes, MPI_CHAR,
                MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (std::size_t first = 0; first < all.size(); first += kTextBytes)
    texts.emplace_back(all.data() + first);
  return texts;
}

void share(std::vector<std::string>& of_ranks) {
  const auto own = static_cast<std::size_t>(world_rank());
  const auto texts = gathered(own < of_ranks.size() ? of_ranks[own] : std::string());
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) of_ranks[rank] = texts[rank];
}

/// The text of the exception thrown by the body, or "".
std::string outcome_of(MPI_Comm communicator, const Body& body) {
  const auto owned_transport = make_mpi_transport(communicator);
  Transport& transport = *owned_transport;
  try {
    body(transport);
  } catch (const std::exception& error) {
    transport.abort(error.what());
    return error.what();
  }
  return {};
}

/// Runs the body on the first `ranks` processes. Every process throws the error of the lowest
/// failed rank.
void run_on_processes(int ranks, const Body& body) {
  MPI_Comm_split(MPI_COMM_WORLD, world_rank() < ranks ? 0 : MPI_UNDEFINED, world_rank(), &members);
  std::string error;
  if (members != MPI_COMM_NULL) {
    error = outcome_of(members, body);
    MPI_Comm_free(&members);
  }
  for (const std::string& text : gathered(error))
    if (!text.empty()) throw TransportError(text);
}

}  // namespace

std::vector<Fabric> fabrics() {
  return {{.name = "Mpi",
           .run = run_on_processes,
           .head_bytes = 64,
           .most_ranks = world_ranks(),
#if TERSOR_TEST_DEVICE_MEMORY
           .memory = Memory::kDevice,
#endif
           .meet = [] { MPI_Barrier(members); },
           .share = share}};
}

}  // namespace tersor::test
