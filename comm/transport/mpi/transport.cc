// Implements <tersor/mpi.h>.
#include <tersor/mpi.h>

#include "comm/transport/host/host_transport.h"
#include "comm/transport/mpi/library.h"
#include "comm/transport/mpi/postman.h"

namespace tersor {
namespace {

std::unique_ptr<Transport> make_transport(MPI_Comm communicator) {
  auto world = std::make_shared<mpi::World>(communicator);
  const TransportTraits traits{.any_thread = world->any_thread()};
  mpi::Box& everybody = world->everybody();
  return std::make_unique<host::HostTransport>(
      std::make_shared<mpi::MpiPostman>(std::move(world), everybody), traits);
}

void initialise(int* argument_count, char*** arguments) {
  int before = 0;
  MPI_Initialized(&before);
  if (before != 0)
    throw InvalidArgument(
        "MPI was initialised before: make a tersor::MpiTransport over your own communicator");
  int level = MPI_THREAD_SINGLE;
  mpi::check(MPI_Init_thread(argument_count, arguments, MPI_THREAD_MULTIPLE, &level),
             "MPI_Init_thread");
}

}  // namespace

MpiTransport::MpiTransport(MPI_Comm communicator) : transport_(make_transport(communicator)) {}

MpiTransport::~MpiTransport() = default;

MpiSession::MpiSession() { initialise(nullptr, nullptr); }

MpiSession::MpiSession(int* argument_count, char*** arguments) {
  initialise(argument_count, arguments);
}

MpiSession::~MpiSession() {
  if (mpi::running() && !mpi::any_poisoned()) MPI_Finalize();
}

}  // namespace tersor
