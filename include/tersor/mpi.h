// Ranks that are processes, on one host or on many: the Transport over MPI. Target tersor::mpi.
#pragma once

#include <mpi.h>
#include <tersor/transport.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tersor {

/// Moves bytes over a communicator of the caller, by non-blocking messages between pairs of ranks.
/// docs/mpi.md says what happens with each thread level and when a process dies.
class MpiTransport final : public Transport {
 public:
  /// Duplicates `communicator`, so that no message of ours meets one of the caller's: a collective
  /// call. MPI must live until this transport and all its channels, splits and handles are gone.
  /// Throws InvalidArgument where MPI is not initialised or already finalised, for MPI_COMM_NULL
  /// and for an inter-communicator; TransportError where MPI reports an error.
  explicit MpiTransport(MPI_Comm communicator);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return transport_->rank(); }
  int ranks() const override { return transport_->ranks(); }
  /// `any_thread` where MPI was initialised with MPI_THREAD_MULTIPLE. With less, only the thread
  /// that made this transport may use it.
  TransportTraits traits() const override { return transport_->traits(); }
  /// By MPI's own word on who shares memory.
  std::vector<int> hosts() const override { return transport_->hosts(); }
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

  std::unique_ptr<Transport> channel() override { return transport_->channel(); }
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

/// For programs that have no MPI yet: initialises it, with MPI_THREAD_MULTIPLE where that is to be
/// had, and finalises it at the end of its life. One for each process; outlives all transports.
class MpiSession {
 public:
  /// Throws InvalidArgument where MPI was initialised before.
  MpiSession();
  /// As above, for launchers that hand something over in the arguments.
  MpiSession(int* argument_count, char*** arguments);
  /// Does not finalise where a transport was poisoned, or a rank does not come to its end within
  /// 300 s: MPI would wait for ranks that are gone. Such a process ends with what mpirun then says
  /// of it.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  MPI_Comm meeting_ = MPI_COMM_NULL;  // of all processes, at the end
};

}  // namespace tersor
