// What the stand-in of NCCL knows. Shared by the ranks' threads, the transports' and the streams'
// of the device: all of it under its mutex.
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tersor::test::fake {

/// What a rank sent: bytes, and which of them were ever written; empty: that is not known.
struct Bytes {
  std::vector<std::byte> values;
  std::vector<char> marks;
};

struct Communicator;

/// A collective of one clique: what each rank put in, when its stream came to it.
struct Meeting {
  std::string kind;  ///< function, count, type: the same of all ranks
  std::map<int, Bytes> inputs;
  int read = 0;  ///< ranks that took their result
};

/// The ranks of one identifier.
struct Clique {
  std::string identifier;
  int ranks = 0;
  std::map<int, Communicator*> members;
  std::map<std::uint64_t, Meeting> meetings;              ///< by number
  std::map<std::pair<int, int>, std::deque<Bytes>> sent;  ///< by sender and receiver
  std::map<std::pair<int, int>, std::uint64_t> waiting;   ///< receives posted, ever
  std::map<std::pair<int, int>, std::uint64_t> posted;    ///< sends posted, ever
};

struct Communicator {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  bool blocking = true;
  bool revoked = false, aborted = false, destroyed = false;
  bool block_next = false, is_deaf = false;
  ncclResult_t error = ncclSuccess;
  int splits = 0;
  std::uint64_t meetings = 0;  ///< collectives that its streams came to
  std::uint64_t queued = 0;    ///< launches, in the host's order
  std::uint64_t begun = 0;     ///< of these
  std::uint64_t ended = 0;
  std::set<const void*> registered;

  bool stopped() const { return revoked || aborted || destroyed; }
};

/// One call within a group.
struct Call {
  enum Kind { kSend, kReceive, kAllGather, kAllReduce } kind;
  Communicator* communicator;
  cudaStream_t stream;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t reduction;
  int peer;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;                         ///< whatever streams wait for
  std::map<std::string, std::shared_ptr<Clique>> cliques;  ///< by identifier
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::map<std::string, int> calls;
  std::vector<std::string> misuses;
  bool refuses_registrations = false;
  int identifiers = 0;

  void misuse(const std::string& what) { misuses.push_back(what); }
};

using Lock = std::unique_lock<std::mutex>;

std::size_t bytes_of(ncclDataType_t type);
/// into[i] = into[i] + other[i], or their maximum.
void combine(Bytes& into, const Bytes& other, ncclDataType_t type, ncclRedOp_t reduction);

/// Queues the calls of a group that are of one communicator and one stream. Under the lock.
void queue_calls(const std::shared_ptr<State>& state, std::vector<Call> calls);

}  // namespace tersor::test::fake
