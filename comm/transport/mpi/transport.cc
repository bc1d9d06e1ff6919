// Implements <tersor/mpi.h>.
#include <tersor/mpi.h>

#include <chrono>
#include <thread>

#include "comm/transport/mpi/library.h"
#include "comm/transport/mpi/wire.h"

namespace tersor {
namespace {

/// Initializes MPI and returns a communicator of all processes.
MPI_Comm initialise(int* argument_count, char*** arguments) {
  int before = 0, after = 0;
  MPI_Initialized(&before);
  MPI_Finalized(&after);
  if (after != 0) throw InvalidArgumentError("MPI was finalised, and cannot be initialised again");
  if (before != 0)
    throw InvalidArgumentError(
        "MPI was initialised before: call tersor::make_mpi_transport with your own communicator");
  int level = MPI_THREAD_SINGLE;
  mpi::check(MPI_Init_thread(argument_count, arguments, MPI_THREAD_MULTIPLE, &level),
             "MPI_Init_thread");
  MPI_Comm all = MPI_COMM_NULL;
  mpi::check(MPI_Comm_dup(MPI_COMM_WORLD, &all), "MPI_Comm_dup");
  mpi::check(MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return all;
}

/// True if all processes arrive in time. MPI_Finalize would wait for dead processes forever.
bool all_arrive(MPI_Comm communicator) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(communicator, &request) != MPI_SUCCESS) return false;
  const auto until = Clock::now() + kDefaultTimeout;
  int done = 0;
  while (done == 0 && Clock::now() < until) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return done != 0;
}

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(MPI_Comm communicator) {
  return make_transport(mpi::make_wire(communicator));
}

MpiSession::MpiSession() : meeting_(initialise(nullptr, nullptr)) {}

MpiSession::MpiSession(int* argument_count, char*** arguments)
    : meeting_(initialise(argument_count, arguments)) {}

MpiSession::~MpiSession() {
  if (!mpi::running() || mpi::any_aborted() || !all_arrive(meeting_)) return;
  MPI_Comm_free(&meeting_);
  MPI_Finalize();
}

}  // namespace tersor
