// Ranks that own a GPU each: the Transport over NCCL, for device memory. Target tersor::nccl.
#pragma once

#include <nccl.h>
#include <tersor/transport.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// Moves device memory over a communicator: operations are queued, and nothing waits on the host
/// (TransportTraits::queues). docs/gpu.md says what that means for deadlines, agreement, graphs and
/// errors.
///
/// Bytes sent have the length that the peer gives as capacity. Of host memory it takes all_gather
/// and barrier alone. There is no receive_any. Native sums are NCCL's own; parts must lie to each
/// other alike on all ranks, and the counters say what a ring moves, 2 (ranks - 1) / ranks of the
/// bytes, since NCCL does not tell.
class NcclTransport final : public Transport {
 public:
  /// Over a communicator of the caller, of the current device, who goes on owning it: nobody else
  /// uses it while this transport lives, and graphs that captured it die before. A collective call.
  /// When a deadline has passed it is revoked (NCCL 2.28; with an older one the caller aborts it,
  /// which the error says), and nothing but ncclCommAbort or ncclCommDestroy is left for it.
  /// Throws InvalidArgument for null, for a communicator of another device, and for one that was
  /// aborted or has failed; TransportError where NCCL is missing, or reports an error, or a rank
  /// does not come within `timeout`.
  explicit NcclTransport(ncclComm_t communicator,
                         std::chrono::milliseconds timeout = kDefaultTimeout);
  /// The same, owning it: it is aborted when a deadline has passed.
  explicit NcclTransport(NcclCommunicator communicator,
                         std::chrono::milliseconds timeout = kDefaultTimeout);
  /// Waits for what was queued.
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  int rank() const override { return transport_->rank(); }
  int ranks() const override { return transport_->ranks(); }
  TransportTraits traits() const override { return transport_->traits(); }
  /// By the names of the machines and the numbers of their last start.
  std::vector<int> hosts() const override { return transport_->hosts(); }
  /// Of what was queued; replays of graphs are not counted.
  TransferCounters counters() const override { return transport_->counters(); }

  std::uint32_t reserve_tags(std::uint32_t count) override {
    return transport_->reserve_tags(count);
  }
  Handle all_to_all(const Operation& operation, std::span<const ConstByteSpan> sends,
                    std::span<const std::size_t> capacities) override {
    return transport_->all_to_all(operation, sends, capacities);
  }
  Handle all_gather(const Operation& operation, ConstByteSpan send, std::size_t capacity) override {
    return transport_->all_gather(operation, send, capacity);
  }
  Handle send(const Operation& operation, int peer, ConstByteSpan bytes) override {
    return transport_->send(operation, peer, bytes);
  }
  Handle receive(const Operation& operation, int peer, std::size_t capacity) override {
    return transport_->receive(operation, peer, capacity);
  }
  Handle receive_any(const Operation& operation, std::size_t capacity) override {
    return transport_->receive_any(operation, capacity);
  }
  Handle sum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return transport_->sum(operation, parts);
  }
  Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return transport_->maximum(operation, parts);
  }
  Handle barrier(const Operation& operation) override { return transport_->barrier(operation); }

  /// A communicator, streams and a bracket of its own.
  std::unique_ptr<Transport> channel() override { return transport_->channel(); }
  /// A communicator of its own; streams and bracket are this transport's.
  std::unique_ptr<Transport> split(std::span<const int> members) override {
    return transport_->split(members);
  }

  void begin(const Operation& operation) override { transport_->begin(operation); }
  void end(const Operation& operation) override { transport_->end(operation); }
  FrameFault* fault() override { return transport_->fault(); }

  void progress() override { transport_->progress(); }
  void wait_activity(Clock::time_point until) override { transport_->wait_activity(until); }
  void wake() override { transport_->wake(); }
  void poison(std::string_view cause) override { transport_->poison(cause); }

 private:
  std::unique_ptr<Transport> transport_;
};

}  // namespace tersor
