// Messages between processes over MPI, of any length and in order.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "comm/transport/mpi/requests.h"
#include "comm/transport/processes/wire.h"

namespace tersor::mpi {

using processes::Arrival;
using processes::Head;

/// One process's end of a communicator of its own.
///
/// A message of up to kWholeBytes, head included, travels as one; a longer one sends its head alone
/// and then its whole payload under a tag of its own, received straight into its place once the
/// receiver has agreed.
class MpiWire final : public processes::Wire {
 public:
  static constexpr std::size_t kWholeBytes = 63 * 1024;
  /// Of a payload that travels with its head.
  static constexpr std::size_t kMostBytesWithHead = kWholeBytes - sizeof(Head);

  /// Duplicates the communicator, and learns who shares a host: a collective call.
  explicit MpiWire(MPI_Comm communicator);

  processes::WireTraits traits() const override;
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::vector<int> host_names() const override { return host_names_; }

  void start(host::BlockPool& pool, Events events) override;
  /// A communicator that some still use, and requests that MPI cannot end, are left to it.
  bool end(processes::Parting parting) override;

  std::shared_ptr<const Job> send(int peer, Head head, ConstByteSpan payload) override;
  std::shared_ptr<const Job> send_block(int peer, Head head, host::Block payload) override;
  bool send_from(int peer, Head head, ConstByteSpan payload,
                 const std::shared_ptr<Job>& job) override;
  void receive_rest(const Arrival& arrival, ByteSpan into,
                    const std::shared_ptr<Job>& job) override;

  bool poll() override { return requests_.poll(); }
  void forget(const host::Batch& batch) override { requests_.forget(batch); }
  bool quiet() const override { return requests_.idle_but(heads_); }
  void pause() const override;

  bool running() const override;
  void note_use() override;
  bool right_thread() const override;
  void check_thread() override;
  void note_poisoned() override;

 private:
  struct HeadReceive;

  void post_head();
  void head_came(HeadReceive& receive);
  Arrival parse(const HeadReceive& receive);
  void take_in_order(Arrival arrival);
  std::shared_ptr<const Job> send_head(int peer, Head& head, ConstByteSpan payload);
  void send_rest(int peer, const Head& head, ConstByteSpan payload,
                 const std::shared_ptr<Job>& job);
  int rest_tag(const Head& head) const;

  MPI_Comm communicator_;
  const int thread_level_;
  const bool takes_device_memory_;
  std::atomic<std::thread::id> user_ = std::this_thread::get_id();
  host::BlockPool* pool_ = nullptr;
  Events events_;
  int rank_ = 0;
  int ranks_ = 0;
  std::vector<int> host_names_;  // by rank: the lowest rank on its host
  std::uint32_t rest_tags_ = 0;  // how many there are
  std::size_t heads_ = 0;        // receives that wait for any head
  Requests requests_;
  std::vector<std::uint32_t> sent_;   // heads, by peer
  std::vector<std::uint32_t> taken_;  // heads, by peer
  std::vector<std::map<std::uint32_t, Arrival>> early_;
};

}  // namespace tersor::mpi
