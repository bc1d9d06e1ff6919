// The NCCL Transport of a channel or split.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/transport/nccl/communicator.h"
#include "comm/transport/nccl/queue.h"
#include "comm/transport/nccl/transfers.h"
#include "comm/transport/nccl/watcher.h"

namespace tersor::nccl {

/// The message of each rank before a new collective.
struct CallRecord {
  std::uint64_t signature = 0;
  std::uint32_t option_bytes = 0;  ///< of the serialized options
  char name[52] = {};              ///< the first characters, and a NUL
};

/// Creates a queue observed by `watcher` during its lifetime.
std::shared_ptr<Queue> make_queue(const std::shared_ptr<Watcher>& watcher);

inline cudaStream_t stream_of(StreamView stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

/// `first_error` returns the first error of two results. `grouped` runs NCCL calls as a group.
inline ncclResult_t first_error(ncclResult_t first, ncclResult_t second) {
  return first == ncclSuccess || first == ncclInProgress ? second : first;
}
template <typename Calls>
ncclResult_t grouped(const Calls& calls) {
  const ncclResult_t began = api().group_start();
  if (began != ncclSuccess) return began;
  const ncclResult_t called = calls();
  const ncclResult_t ended = api().group_end();
  return first_error(called, ended);
}

class DeviceTransport final : public Transport {
 public:
  /// Includes all ranks. Gathers the host of each rank.
  DeviceTransport(std::shared_ptr<Watcher> watcher, std::unique_ptr<Communicator> communicator,
                  std::chrono::milliseconds timeout);
  ~DeviceTransport() override;

  int rank() const override { return communicator_->rank(); }
  int ranks() const override { return communicator_->ranks(); }
  std::vector<int> hosts() const override { return hosts_; }
  TransportTraits traits() const override;
  TransferCounters counters() const override;
  std::uint32_t reserve_tags(std::uint32_t count) override;

  Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                  std::span<const ReceiveFrom> receives) override;
  Handle all_gather(const Operation& operation, ConstByteSpan send, std::size_t capacity) override;
  Handle sum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return reduce(operation, parts, ncclSum);
  }
  Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return reduce(operation, parts, ncclMax);
  }

  std::unique_ptr<Transport> channel() override;
  std::unique_ptr<Transport> split(std::span<const int> members) override;

  void begin(const Operation& operation) override;
  void end(const Operation& operation) override { queue_->close(operation); }
  FrameFault* fault() override { return queue_->frame_fault(); }

  void progress() override { check_frames("progress"); }
  void wait_activity(Clock::time_point until) override;
  void wake() override;
  void abort(std::string_view cause) override;
  void close() override;

 private:
  DeviceTransport(std::shared_ptr<Watcher> watcher, std::shared_ptr<Queue> queue,
                  std::unique_ptr<Communicator> communicator, std::chrono::milliseconds timeout);

  friend class ImplicitBracket;

  /// queueing(communicator, stream, into) queues NCCL operations on the stream. Received messages
  /// are stored contiguously at `into`; the message of this rank itself is scratch memory.
  template <typename Queueing>
  Handle launch(const Operation& operation, std::span<const ReceiveFrom> receives,
                const Queueing& queueing);
  /// Calls NCCL. A failed call aborts the transport.
  template <typename Call>
  void call_nccl(const Operation& operation, Call&& call) {
    try {
      communicator_->run(operation, call);
    } catch (const TransportError& error) {
      fail(operation, error.what());
    }
  }
  std::byte* receive_memory(QueuedTransfer& transfer, std::span<const ReceiveFrom> receives);
  Handle reduce(const Operation& operation, std::span<const ValueSpan> parts, ncclRedOp_t op);
  Handle queue_barrier(const Operation& operation);

  Handle gather_staged(const Operation& operation, ConstByteSpan send, std::size_t capacity);
  ncclUniqueId broadcast_id(std::span<const int> members, const Operation& operation);
  std::unique_ptr<Transport> join(std::span<const int> members, std::shared_ptr<Queue> queue,
                                  std::string_view name);
  [[noreturn]] void fail(const Operation& operation, const std::string& cause);
  void check_frames(std::string_view operation);
  void open(const Operation& operation);
  void agree(const Operation& operation);
  /// Returns the value of each rank.
  template <typename Value>
  std::vector<Value> gather_values(const Operation& operation, const Value& own);
  std::vector<Difference> compare_options(const Operation& operation, ConstByteSpan options,
                                          const std::vector<CallRecord>& calls);

  void check_host(const Operation& operation) const;
  void check_device(const Operation& operation, ConstByteSpan bytes) const;
  std::string name(int rank) const;
  void count_sent(std::uint64_t bytes, std::uint64_t messages);

  std::shared_ptr<Watcher> watcher_;
  std::shared_ptr<Queue> queue_;
  std::unique_ptr<Communicator> communicator_;
  std::chrono::milliseconds timeout_;  // for calls without an operation
  std::vector<int> hosts_;
  std::set<std::uint64_t> agreed_;  // signatures confirmed by all ranks
  std::uint32_t next_tag_ = 0;

  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<std::uint64_t> received_bytes_{0};
  std::atomic<std::uint64_t> sent_messages_{0};

  std::mutex wake_mutex_;
  std::condition_variable woken_changed_;
  bool woken_ = false;
};

}  // namespace tersor::nccl
