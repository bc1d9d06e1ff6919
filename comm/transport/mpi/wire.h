// Messages between processes over MPI, of any length and in order.
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

/// One process's end of a communicator of its own.
///
/// A message of up to kWholeBytes, head included, travels as one; a longer one sends its head alone
/// and then its whole payload under a tag of its own, received straight into its place once the
/// receiver has agreed.
class MpiWire final : public Wire {
 public:
  static constexpr std::size_t kWholeBytes = 63 * 1024;
  /// Of a payload that travels with its head.
  static constexpr std::size_t kMostBytesWithHead = kWholeBytes - sizeof(MessageHead);

  /// Duplicates the communicator, and learns who shares a host: a collective call.
  explicit MpiWire(MPI_Comm communicator);

  Traits traits() const override;
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::vector<int> host_names() const override { return host_names_; }

  void start(Events events) override;
  /// A communicator that some still use, and requests that MPI cannot end, are left to it.
  bool end(Parting parting) override;

  void send(int peer, MessageHead head, Payload payload) override;
  void receive_rest(const Arrival& arrival, ByteSpan into,
                    const std::shared_ptr<Job>& job) override;

  bool poll() override { return requests_.poll(); }
  bool quiet() const override { return requests_.idle_but(heads_); }

  bool running() const override { return mpi::running(); }
  void note_use() override;
  bool right_thread() const override;
  void check_thread() override;
  void note_poisoned() override;

 private:
  struct HeadReceive;
  struct Peer {
    std::uint32_t sent = 0, taken = 0;       // heads
    std::map<std::uint32_t, Arrival> early;  // by number
  };

  void post_head(std::shared_ptr<Job> job);
  void head_came(HeadReceive& receive);
  Arrival parse(const HeadReceive& receive);
  void take_in_order(Arrival arrival);
  void send_head(int peer, MessageHead& head, Payload payload);
  void send_rest(int peer, const MessageHead& head, Payload payload);
  int rest_tag(const MessageHead& head) const;

  MPI_Comm communicator_;
  const int thread_level_;
  const bool takes_device_memory_;
  const bool yields_;  // where it finds nothing
  std::atomic<std::thread::id> user_ = std::this_thread::get_id();
  Events events_;
  int rank_ = 0;
  int ranks_ = 0;
  std::vector<int> host_names_;  // by rank: the lowest rank on its host
  std::uint32_t rest_tags_ = 0;  // how many there are
  std::size_t heads_ = 0;        // receives that wait for any head
  Requests requests_;
  std::vector<Peer> peers_;  // by rank
};

}  // namespace tersor::mpi
