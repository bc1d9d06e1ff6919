// With TERSOR_MPI_CUDA=1 an MPI that knows nothing of devices is given their memory. The emulated
// device's is the host's underneath, and here MPI may touch it.
#include <cstdlib>
#include <memory>
#include <string_view>

#include "tests/emulated/arena.h"

namespace tersor::emulator {
namespace {

std::unique_ptr<ArenaAccess> access_of_mpi() {
  const char* direct = std::getenv("TERSOR_MPI_CUDA");
  if (direct == nullptr || std::string_view(direct) != "1") return nullptr;
  return std::make_unique<ArenaAccess>();
}

const std::unique_ptr<ArenaAccess> access = access_of_mpi();

}  // namespace
}  // namespace tersor::emulator
