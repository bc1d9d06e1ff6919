// Implements NcclCommunicator of <tersor/nccl.h>: rendezvous of ranks without a communicator.
#include <tersor/error.h>
#include <tersor/nccl.h>
#include <tersor/wire.h>

#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>

#include "comm/transport/nccl/communicator.h"

namespace tersor {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kPollInterval{5};

ncclUniqueId new_id() {
  ncclUniqueId id{};
  nccl::check(nccl::api().get_unique_id(&id), "ncclGetUniqueId", nullptr);
  return id;
}

/// Writes a temporary file, then renames the file. No rank can read a partial id.
void write_id(const fs::path& file, const ncclUniqueId& id) {
  if (fs::exists(file))
    throw InvalidArgumentError(file.string() + " exists: use a new name for each run");
  const fs::path part = file.string() + ".part";
  std::ofstream(part, std::ios::binary).write(id.internal, sizeof id.internal);
  std::error_code failed;
  if (fs::file_size(part, failed) == sizeof id.internal) fs::rename(part, file, failed);
  if (failed || !fs::exists(file))
    throw InvalidArgumentError("cannot write " + file.string() + ": " + failed.message());
}

ncclUniqueId read_id(const fs::path& file, Clock::time_point until) {
  while (!fs::exists(file)) {
    if (Clock::now() >= until)
      throw TransportError("rank 0 did not write " + file.string() + " in time");
    std::this_thread::sleep_for(kPollInterval);
  }
  ncclUniqueId id{};
  std::ifstream stream(file, std::ios::binary);
  if (!stream.read(id.internal, sizeof id.internal))
    throw TransportError(file.string() + " contains no NCCL identifier");
  return id;
}

}  // namespace

NcclCommunicator NcclCommunicator::from_file(const fs::path& file, int rank, int ranks,
                                             std::chrono::milliseconds timeout) {
  if (rank < 0 || rank >= ranks)
    throw InvalidArgumentError("rank is " + std::to_string(rank) + ": give 0 to " +
                               std::to_string(ranks - 1));
  const auto until = Clock::now() + timeout;
  const ncclUniqueId id = rank == 0 ? new_id() : read_id(file, until);
  if (rank == 0) write_id(file, id);
  return NcclCommunicator(nccl::make_communicator(id, rank, ranks, until));
}

NcclCommunicator NcclCommunicator::over(Transport& bootstrap, std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  ncclUniqueId id{};
  if (bootstrap.rank() == 0) id = new_id();
  if (bootstrap.ranks() > 1) {
    const Operation operation{.name = "NcclCommunicator",
                              .signature = Signature().add("NcclCommunicator").value(),
                              .tag = bootstrap.reserve_tags(1),
                              .timeout = timeout};
    Handle handle =
        bootstrap.all_gather(operation, std::as_bytes(std::span(id.internal)), sizeof id.internal);
    handle.wait_synchronize();
    if (bootstrap.rank() != 0)
      std::memcpy(id.internal, handle.received(0).data(), sizeof id.internal);
  }
  return NcclCommunicator(nccl::make_communicator(id, bootstrap.rank(), bootstrap.ranks(), until));
}

NcclCommunicator::~NcclCommunicator() {
  if (handle_ != nullptr) nccl::destroy(handle_);
}

}  // namespace tersor
