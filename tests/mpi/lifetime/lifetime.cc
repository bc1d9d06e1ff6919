// A transport requires an initialized MPI. Construction before MPI_Init or after MPI_Finalize
// raises a clear error. A separate program, because MPI starts and ends only once per process.
#include <mpi.h>
#include <tersor/mpi.h>

#include <cstdio>
#include <memory>
#include <string>

namespace {

template <typename Call>
bool refuses(const char* when, const char* word, Call&& call) {
  try {
    call();
    std::printf("%s: no error\n", when);
  } catch (const tersor::InvalidArgumentError& error) {
    if (std::string(error.what()).find(word) != std::string::npos) return true;
    std::printf("%s: %s\n", when, error.what());
  }
  return false;
}

void make() { tersor::make_mpi_transport(MPI_COMM_WORLD); }

}  // namespace

int main() {
  bool right = refuses("before MPI_Init", "not initialised", make);
  std::unique_ptr<tersor::Transport> kept;
  {
    const tersor::MpiSession session;
    kept = tersor::make_mpi_transport(MPI_COMM_WORLD);
    kept->barrier({.name = "test"}).wait_synchronize();
  }
  right &= refuses("a transport after MPI_Finalize", "finalised", [&] { kept->progress(); });
  kept.reset();
  right &= refuses("after MPI_Finalize", "finalised already", make);
  right &= refuses("a second session", "cannot be initialised again",
                   [] { const tersor::MpiSession session; });
  return right ? 0 : 1;
}
