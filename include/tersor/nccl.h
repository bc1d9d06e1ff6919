// Ranks that own a GPU each: the Transport over NCCL, for device memory. Target tersor::nccl.
#pragma once

#include <nccl.h>
#include <tersor/forwarding.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

namespace tersor {

/// The NCCL in use: its version and the file that it was loaded from, for reports. NCCL is not
/// linked but found at the first call: docs/gpu.md says where it is looked for.
/// Throws TransportError where there is none.
std::string nccl_library();

/// Owner of a communicator of the current device, for those who have none. Move only.
/// Making one is a collective call; a rank that does not come ends it on the others with
/// TransportError at the timeout.
class NcclCommunicator {
 public:
  /// Ranks meet by way of a file that all of them see. Rank 0 writes it and the others wait for it,
  /// so each run needs a name that no run had before (the launcher's job number in it): an old file
  /// leads the others astray. It may be removed once all ranks are back.
  /// Throws InvalidArgument for a rank outside [0, ranks), and on rank 0 for a file that is there.
  static NcclCommunicator from_file(const std::filesystem::path& file, int rank, int ranks,
                                    std::chrono::milliseconds timeout = kDefaultTimeout);

  /// The ranks of another transport that takes host memory: MPI, or threads. It is not needed
  /// afterwards.
  static NcclCommunicator over(Transport& bootstrap,
                               std::chrono::milliseconds timeout = kDefaultTimeout);

  NcclCommunicator() = default;  ///< owns none
  /// Takes over a communicator, which is destroyed with this object.
  explicit NcclCommunicator(ncclComm_t handle) : handle_(handle) {}
  /// Waits for what is queued on the communicator.
  ~NcclCommunicator();
  NcclCommunicator(NcclCommunicator&& other) noexcept : handle_(other.release()) {}
  NcclCommunicator& operator=(NcclCommunicator&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  ncclComm_t handle() const { return handle_; }
  /// Gives up the ownership.
  ncclComm_t release() { return std::exchange(handle_, nullptr); }

 private:
  ncclComm_t handle_ = nullptr;
};

/// Values of a chunk over NCCL (TransportTraits::chunk_count): each costs the host some 70 us, and
/// the device's stream the latency of two groups of messages.
inline constexpr std::size_t kNcclChunkCount = std::size_t{1} << 23;

/// Moves device memory over a communicator: operations are queued, and nothing waits on the host
/// (TransportTraits::queues). docs/gpu.md says what that means for deadlines, agreement, graphs and
/// errors.
///
/// Bytes sent have the length that the peer gives as capacity; where that is 0, no message is sent,
/// and only an all_gather of it waits for anybody. Of host memory it takes all_gather and barrier
/// alone. There is no receive_any. Native sums are NCCL's own; parts must lie to each other alike
/// on all ranks, and the counters say what a ring moves, 2 (ranks - 1) / ranks of the bytes, since
/// NCCL does not tell. Replays of graphs are not counted. Ranks share a host where the names of
/// their machines and the numbers of their last start are equal.
///
/// A channel has a communicator, streams and a bracket of its own; a split a communicator, and this
/// transport's streams and bracket.
class NcclTransport final : public ForwardingTransport {
 public:
  /// Over a communicator of the caller, of the current device, who goes on owning it: nobody else
  /// uses it while this transport lives, and graphs that captured it die before. A collective call.
  /// When a deadline has passed, a frame was damaged, or the transport is poisoned, it is revoked
  /// (NCCL 2.28.9 can; where it cannot the caller aborts it, which the error says), and nothing but
  /// ncclCommAbort or ncclCommDestroy is left for it. What is decoded from an exchange that was
  /// stopped so is NaN; native sums that were are undefined.
  /// Throws InvalidArgument for null, for a communicator of another device, and for one that was
  /// aborted or has failed, as far as NCCL tells; TransportError where NCCL is missing, or reports
  /// an error, or a rank does not come within `timeout`.
  explicit NcclTransport(ncclComm_t communicator,
                         std::chrono::milliseconds timeout = kDefaultTimeout);
  /// The same, owning it: it is aborted then.
  explicit NcclTransport(NcclCommunicator communicator,
                         std::chrono::milliseconds timeout = kDefaultTimeout);
  /// Waits for what was queued.
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;
};

}  // namespace tersor
