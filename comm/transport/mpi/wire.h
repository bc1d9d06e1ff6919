// Heads and payloads between processes, in order, of any length. Knows no channel.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "comm/transport/mpi/head.h"
#include "comm/transport/mpi/requests.h"

namespace tersor::mpi {

/// A head that came, with its payload where that travelled with it.
struct Arrival {
  Head head;
  host::Block payload;
  int peer = 0;
};

/// One process's end of all its wires. One thread at a time.
class Wire {
 public:
  using Take = std::function<void(Arrival arrival)>;

  /// Over a communicator that nobody else uses. `take` gets each head, from `poll`.
  Wire(MPI_Comm communicator, host::BlockPool& pool, Take take);
  /// Gives back what MPI lets go of: call it once `quiet`.
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// Sends a copy of the payload; the job has left when it is no more `open`.
  std::shared_ptr<const Job> send(int peer, Head head, ConstByteSpan payload);
  /// Sends the bytes of a block, which is kept until they have left.
  std::shared_ptr<const Job> send_block(int peer, Head head, host::Block payload);
  /// Sends the bytes at `payload`, which `job.keep_alive` owns; a short one is copied and the job
  /// forgotten. Returns whether the job is under way.
  bool send_from(int peer, Head head, ConstByteSpan payload, const std::shared_ptr<Job>& job);
  /// Receives the payload that did not travel with its head.
  void receive_rest(const Arrival& arrival, ByteSpan into, const std::shared_ptr<Job>& job);

  bool poll() { return requests_.poll(); }
  void forget(const host::Batch& batch) { requests_.forget(batch); }
  /// True once all that was sent has left, and all that was agreed on has come.
  bool quiet() const { return requests_.idle_but(heads_); }

 private:
  void post_head();
  void head_came(const Job& job, const MPI_Status& status);
  Arrival parse(const host::Block& memory, const MPI_Status& status);
  void take_in_order(Arrival arrival);
  std::shared_ptr<const Job> send_head(int peer, Head& head, ConstByteSpan payload);
  void send_rest(int peer, const Head& head, ConstByteSpan payload,
                 const std::shared_ptr<Job>& job);
  int rest_tag(const Head& head) const;

  MPI_Comm communicator_;
  host::BlockPool& pool_;
  Take take_;
  int rank_ = 0;
  int ranks_ = 0;
  std::uint32_t rest_tags_ = 0;  // how many there are
  std::size_t heads_ = 0;        // receives that wait for any head
  Requests requests_;
  std::vector<std::uint32_t> sent_;   // heads, by peer
  std::vector<std::uint32_t> taken_;  // heads, by peer
  std::vector<std::map<std::uint32_t, Arrival>> early_;
};

}  // namespace tersor::mpi
