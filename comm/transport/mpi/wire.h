// Ordered messages of any length between processes over MPI.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "comm/transport/mpi/library.h"
#include "comm/transport/mpi/requests.h"

namespace tersor::mpi {

/// A process's endpoint on a private communicator.
///
/// A message of up to kWholeBytes, header included, is sent as a single MPI message. A longer
/// message sends its header first. The payload follows under a separate tag and is received in
/// place after the receiver has posted the receive.
class MpiWire final : public Wire {
 public:
  static constexpr std::size_t kWholeBytes = 63 * 1024;
  /// Maximum payload sent together with the header.
  static constexpr std::size_t kMaxBytesWithHead = kWholeBytes - sizeof(MessageHead);

  /// Duplicates the communicator and gathers the host of each rank. Collective.
  explicit MpiWire(MPI_Comm communicator);

  Traits traits() const override;
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::vector<int> host_names() const override { return host_names_; }

  void start(Events events) override;
  /// Leaks a communicator still in use by other ranks, and requests MPI cannot end.
  bool end(Shutdown shutdown) override;

  void send(int peer, MessageHead head, Payload payload) override;
  void receive_rest(const Arrival& arrival, ByteSpan into,
                    const std::shared_ptr<Job>& job) override;

  bool poll() override { return requests_.poll(); }
  bool quiet() const override { return requests_.has_at_most(heads_); }

  bool running() const override { return mpi::running(); }
  void record_use() override;
  bool right_thread() const override;
  void check_thread() override;
  void record_abort() override;

 private:
  struct HeadReceive;
  struct Peer {
    std::uint32_t sent = 0, taken = 0;       // number of headers
    std::map<std::uint32_t, Arrival> early;  // headers received out of order, by sequence number
  };

  void post_head(std::shared_ptr<Job> job);
  void on_head(HeadReceive& receive);
  Arrival parse(const HeadReceive& receive);
  void deliver_in_order(Arrival arrival);
  void send_head(int peer, MessageHead& head, Payload payload);
  void send_rest(int peer, const MessageHead& head, Payload payload);
  int rest_tag(const MessageHead& head) const;

  MPI_Comm communicator_;
  const int thread_level_;
  const bool supports_device_memory_;
  const bool yields_;  // True if an idle MPI yields the core
  std::atomic<std::thread::id> user_ = std::this_thread::get_id();
  Events events_;
  int rank_ = 0;
  int ranks_ = 0;
  std::vector<int> host_names_;  // lowest rank on the same host, by rank
  std::uint32_t rest_tags_ = 0;  // number of tags
  std::size_t heads_ = 0;        // number of posted header receives
  Requests requests_;
  std::vector<Peer> peers_;  // by rank
};

}  // namespace tersor::mpi
