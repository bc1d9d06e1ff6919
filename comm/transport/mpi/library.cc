#include "comm/transport/mpi/library.h"

#include <tersor/error.h>

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <array>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>

namespace tersor::mpi {
namespace {

std::atomic<bool> aborted{false};

/// Reads a boolean environment variable in Open MPI's formats ("1", "true", "yes", "enabled").
std::optional<bool> environment_switch(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  return std::atoi(text) != 0 || std::string_view("tTyYeE").find(*text) < 6;
}

}  // namespace

void check(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw TransportError(std::string(call) +
                       " failed: " + std::string(text.data(), static_cast<std::size_t>(length)));
}

bool running() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

void check_communicator(MPI_Comm communicator) {
  if (!running())
    throw InvalidArgumentError(
        "MPI is not initialised, or finalised already: make transports between MPI_Init and "
        "MPI_Finalize (tersor::MpiSession calls both)");
  if (communicator == MPI_COMM_NULL)
    throw InvalidArgumentError(
        "the communicator is MPI_COMM_NULL: make transports only on members of the communicator");
  int between_groups = 0;
  check(MPI_Comm_test_inter(communicator, &between_groups), "MPI_Comm_test_inter");
  if (between_groups != 0)
    throw InvalidArgumentError(
        "the communicator is an inter-communicator: merge its groups with MPI_Intercomm_merge");
  int main_thread = 1;
  check(MPI_Is_thread_main(&main_thread), "MPI_Is_thread_main");
  if (main_thread == 0 && thread_level() < MPI_THREAD_SERIALIZED)
    throw InvalidArgumentError(
        "MPI was initialised with " + std::string(thread_level_name(thread_level())) +
        ": only the initialising thread may make a transport; initialise with "
        "MPI_THREAD_MULTIPLE to use other threads");
}

int thread_level() {
  int level = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  return level;
}

std::string_view thread_level_name(int level) {
  if (level == MPI_THREAD_MULTIPLE) return "MPI_THREAD_MULTIPLE";
  if (level == MPI_THREAD_SERIALIZED) return "MPI_THREAD_SERIALIZED";
  return level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE";
}

bool supports_device_memory() {
  if (const char* setting = std::getenv("TERSOR_MPI_CUDA")) {
    const std::string_view text(setting);
    if (text != "0" && text != "1")
      throw InvalidArgumentError("TERSOR_MPI_CUDA is \"" + std::string(text) + "\": give 0 or 1");
    return text == "1";
  }
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

// Avoids MPI's tool interface: its initialization permanently sets the thread level of the process
// and takes 200 ms with Open MPI.
bool yields_when_idle() {
  const auto configured = environment_switch("OMPI_MCA_mpi_yield_when_idle");
  return configured.value_or(environment_switch("OMPI_MCA_mpi_oversubscribe").value_or(false));
}

bool any_aborted() { return aborted.load(); }

void record_abort() { aborted.store(true); }

}  // namespace tersor::mpi
