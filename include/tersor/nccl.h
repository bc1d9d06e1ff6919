// The NCCL transport for device memory: each rank owns a GPU. Link the target tersor::nccl.
#pragma once

#include <nccl.h>
#include <tersor/transport.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

namespace tersor {

/// Returns the NCCL version and the path of the loaded library, for reports. Tersor loads NCCL at
/// the first call without linking it; docs/how-to/gpu.md describes the search. Throws
/// TransportError if NCCL is not found.
std::string nccl_library();

/// The owner of a communicator on the current device. Move only. Making a communicator is a
/// collective call. If a rank is missing at the timeout, the other ranks throw TransportError.
class NcclCommunicator {
 public:
  /// Rendezvous in a file that all ranks see. Rank 0 writes the file, and the other ranks wait for
  /// the file. Each run needs a new file name, e.g. with the launcher's job number, because an old
  /// file misleads the other ranks. Remove the file after all ranks have returned. Throws
  /// InvalidArgumentError for a rank outside [0, ranks), and on rank 0 if the file exists.
  static NcclCommunicator from_file(const std::filesystem::path& file, int rank, int ranks,
                                    std::chrono::milliseconds timeout = kDefaultTimeout);

  /// Rendezvous over another transport for host memory, e.g. MPI or threads. The other transport is
  /// not needed afterwards.
  static NcclCommunicator over(Transport& bootstrap,
                               std::chrono::milliseconds timeout = kDefaultTimeout);

  NcclCommunicator() = default;  ///< owns no communicator
  /// Takes ownership of a communicator. The destructor destroys the communicator.
  explicit NcclCommunicator(ncclComm_t handle) : handle_(handle) {}
  /// Waits for all work queued on the communicator.
  ~NcclCommunicator();
  NcclCommunicator(NcclCommunicator&& other) noexcept : handle_(other.release()) {}
  NcclCommunicator& operator=(NcclCommunicator&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// Returns the communicator; null if there is none.
  ncclComm_t handle() const { return handle_; }
  /// Returns the communicator and gives up ownership.
  ncclComm_t release() { return std::exchange(handle_, nullptr); }

 private:
  ncclComm_t handle_ = nullptr;
};

/// Default chunk length over NCCL in values (TransportTraits::chunk_count). Each chunk costs the
/// host about 70 us, and the device's stream the latency of two message groups.
inline constexpr std::size_t kNcclChunkCount = std::size_t{1} << 23;

/// An NCCL transport moves device memory over a communicator. Operations are queued and never block
/// the host (TransportTraits::queues). docs/how-to/gpu.md describes the effects on deadlines,
/// agreement, graphs and errors.
///
/// The peer's capacity sets the length of a sent message. If the capacity is 0, no message is sent,
/// and only all_gather waits. Host memory works only with all_gather and barrier. There is no
/// receive_any. Native sums use NCCL; all ranks must have the same offsets between parts. NCCL does
/// not report traffic: the counters of sums assume a ring, 2 (ranks - 1) / ranks of the bytes.
/// Replays of graphs are not counted. Ranks share a host if their machine names and boot IDs are
/// equal.
///
/// Each channel has its own communicator, streams and `begin` state. A split has its own
/// communicator, and uses this transport's streams and `begin` state.
///
/// `timeout` limits the collective calls that make the transport, its channels and its splits. A
/// collective call. Throws InvalidArgumentError for null, for a communicator of a device other than
/// the current device, and for an aborted or failed communicator if NCCL reports the failure.
/// Throws TransportError if NCCL is missing or reports an error, or if a rank does not call within
/// `timeout`. Destroying the transport waits for queued work.

/// Uses the caller's communicator. The caller keeps ownership, and must not use the communicator
/// while the transport lives. Destroy graphs that captured the communicator earlier.
///
/// After a missed deadline, a damaged frame or an abort, Tersor revokes the communicator. Only
/// ncclCommAbort and ncclCommDestroy may follow. NCCL before 2.28.9 cannot revoke; the error then
/// asks the caller to abort. Values decoded from an interrupted exchange are NaN; interrupted
/// native sums are undefined.
std::unique_ptr<Transport> make_nccl_transport(ncclComm_t communicator,
                                               std::chrono::milliseconds timeout = kDefaultTimeout);
/// Takes ownership of the communicator, and aborts it in these cases.
std::unique_ptr<Transport> make_nccl_transport(NcclCommunicator communicator,
                                               std::chrono::milliseconds timeout = kDefaultTimeout);

}  // namespace tersor
