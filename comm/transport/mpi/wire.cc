#include "comm/transport/mpi/wire.h"

#include <tersor/error.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transport/mpi/library.h"
#include "comm/transport/mpi/requests.h"

namespace tersor::mpi {
namespace {

constexpr int kHeadTag = 1;
constexpr int kFirstRestTag = 2;
constexpr std::size_t kMinHeads = 8;
constexpr std::size_t kMaxHeads = 64;
constexpr std::size_t kWholeBytes = 63 * 1024;
constexpr std::size_t kMaxBytesWithHead = kWholeBytes - sizeof(MessageHead);  // of a payload
// Shorter payloads are copied out of the header's block.
constexpr std::size_t kCopiedBytes = 8 * 1024;
// Size of pieces sent by Open MPI over TCP without a handshake: the eager limit is 64 KiB, Open
// MPI's header included. A computing receiver therefore blocks no sender. On four hosts at 1
// Gbit/s, int8 took 0.23 s for 64 MiB in these pieces and 0.31 s in one piece. Long payloads use
// longer pieces to limit the number of requests; a chunk of f32 values does not. If two ranks
// exchange long single pieces, both directions run in sequence. The cause is the handshake reply of
// the second rank, queued behind the rank's own message on the same connection.
constexpr std::size_t kEagerPieceBytes = 63 * 1024;
constexpr std::size_t kMaxEagerPieces = 66;
constexpr std::size_t kLongPieceBytes = std::size_t{1} << 30;  // MPI counts in int

bool fits_with_head(std::uint64_t payload_bytes) { return payload_bytes <= kMaxBytesWithHead; }

MPI_Comm duplicate(MPI_Comm communicator) {
  check_communicator(communicator);
  MPI_Comm own = MPI_COMM_NULL;
  check(MPI_Comm_dup(communicator, &own), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return own;
}

/// The lowest rank sharing memory with each rank.
std::vector<int> lowest_ranks_of_hosts(MPI_Comm communicator) {
  MPI_Comm host = MPI_COMM_NULL;
  int name = 0, ranks = 0;
  check(MPI_Comm_rank(communicator, &name), "MPI_Comm_rank");
  check(MPI_Comm_size(communicator, &ranks), "MPI_Comm_size");
  check(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, name, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
  check(MPI_Bcast(&name, 1, MPI_INT, 0, host), "MPI_Bcast");
  check(MPI_Comm_free(&host), "MPI_Comm_free");
  std::vector<int> names(static_cast<std::size_t>(ranks));
  check(MPI_Allgather(&name, 1, MPI_INT, names.data(), 1, MPI_INT, communicator), "MPI_Allgather");
  return names;
}

std::uint32_t rest_tags_of(MPI_Comm communicator) {
  int* bound = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(communicator, MPI_TAG_UB, &bound, &found), "MPI_Comm_get_attr");
  return static_cast<std::uint32_t>((found != 0 ? *bound : 32'767) - kFirstRestTag);
}

bool is_sent(MPI_Request& request) {
  int sent = 0;
  check(MPI_Test(&request, &sent, MPI_STATUS_IGNORE), "MPI_Test");
  return sent != 0;
}

/// Calls `visit(first, bytes)` for each piece of a payload.
template <typename Visitor>
void for_each_piece(std::size_t bytes, Visitor&& visit) {
  const bool eager = bytes <= kMaxEagerPieces * kEagerPieceBytes;
  const std::size_t step = eager ? kEagerPieceBytes : kLongPieceBytes;
  for (std::size_t first = 0; first < bytes; first += step)
    visit(first, static_cast<int>(std::min(step, bytes - first)));
}

/// The receive of a header with an optional payload.
struct HeadReceive : Job, std::enable_shared_from_this<HeadReceive> {
  MPI_Status status;
};

/// A process's endpoint on a private communicator.
///
/// A message of up to kWholeBytes, header included, is sent as a single MPI message. A longer
/// message sends its header first. The payload follows under a separate tag and is received in
/// place after the receiver has posted the receive.
class MpiWire final : public Wire {
 public:
  // All collective calls come before `start`, because `start` accepts every message.
  explicit MpiWire(MPI_Comm communicator)
      : communicator_(duplicate(communicator)),
        host_names_(lowest_ranks_of_hosts(communicator_)),
        rest_tags_(rest_tags_of(communicator_)),
        peers_(host_names_.size()) {
    check(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
  }

  Traits traits() const override {
    Traits traits{.any_thread = thread_level_ == MPI_THREAD_MULTIPLE,
                  .waiting = yields_ ? Waiting::kPollYielding : Waiting::kPoll,
                  .copied_bytes = kMaxBytesWithHead};
    if (supports_device_memory_) traits.least_device_bytes = kMaxBytesWithHead + 1;
    return traits;
  }
  int rank() const override { return rank_; }
  int ranks() const override { return static_cast<int>(peers_.size()); }
  std::vector<int> host_names() const override { return host_names_; }

  void start(Events events) override {
    events_ = std::move(events);
    const std::size_t heads =
        peers_.size() == 1 ? 0 : std::clamp(2 * peers_.size(), kMinHeads, kMaxHeads);
    try {
      for (; heads_ < heads; ++heads_) {
        auto receive = std::make_shared<HeadReceive>();
        receive->done = [this](Job& done) { on_head(static_cast<HeadReceive&>(done)); };
        post_head(std::move(receive));
      }
    } catch (...) {
      requests_.cancel_all();  // frees the blocks
      throw;
    }
  }

  // Leaks a communicator still in use by other ranks, and requests MPI cannot end.
  bool end(Shutdown shutdown) override {
    if (shutdown == Shutdown::kUncoordinated) return false;
    requests_.cancel_all();
    MPI_Comm_free(&communicator_);
    return true;
  }

  void send(int peer, MessageHead head, Payload payload) override {
    if (fits_with_head(payload.bytes.size())) return send_head(peer, head, std::move(payload));
    send_head(peer, head, {});
    send_rest(peer, head, std::move(payload));
  }

  void receive_rest(const Arrival& arrival, ByteSpan into,
                    const std::shared_ptr<Job>& job) override {
    for_each_piece(into.size(), [&](std::size_t first, int bytes) {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Irecv(into.data() + first, bytes, MPI_BYTE, arrival.peer, rest_tag(arrival.head),
                      communicator_, &request),
            "MPI_Irecv");
      requests_.add(job, request);
    });
  }

  bool poll() override { return requests_.poll(); }
  bool quiet() const override { return requests_.has_at_most(heads_); }

  bool running() const override { return mpi::running(); }

  void record_use() override {
    if (thread_level_ == MPI_THREAD_SERIALIZED) user_ = std::this_thread::get_id();
  }

  bool right_thread() const override {
    return thread_level_ == MPI_THREAD_MULTIPLE || std::this_thread::get_id() == user_;
  }

  void check_thread() override {
    if (!running())
      throw InvalidArgumentError(
          "MPI was finalised: destroy transports and handles before MPI_Finalize");
    record_use();
    if (right_thread()) return;
    throw InvalidArgumentError(
        "MPI was initialised with " + std::string(thread_level_name(thread_level_)) +
        ": only the thread that made this transport may use it; initialise with "
        "MPI_THREAD_MULTIPLE to use other threads");
  }

  void record_abort() override { mpi::record_abort(); }

 private:
  struct Peer {
    std::uint32_t sent = 0, taken = 0;       // number of headers
    std::map<std::uint32_t, Arrival> early;  // headers received out of order, by sequence number
  };

  void post_head(std::shared_ptr<Job> job) {
    auto& receive = static_cast<HeadReceive&>(*job);
    receive.memory = take_block(kWholeBytes);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(receive.memory.writable().data(), static_cast<int>(kWholeBytes), MPI_BYTE,
                    MPI_ANY_SOURCE, kHeadTag, communicator_, &request),
          "MPI_Irecv");
    requests_.add(std::move(job), request, &receive.status);
  }

  // Posts the next receive first, because the next message may come before this message is handled.
  void on_head(HeadReceive& receive) {
    Arrival arrival = parse(receive);
    post_head(receive.shared_from_this());
    deliver_in_order(std::move(arrival));
  }

  Arrival parse(const HeadReceive& receive) {
    int bytes = 0;
    check(MPI_Get_count(&receive.status, MPI_BYTE, &bytes), "MPI_Get_count");
    Arrival arrival{.head = {}, .payload = {}, .peer = receive.status.MPI_SOURCE};
    const Block& memory = receive.memory;
    const std::size_t received = static_cast<std::size_t>(bytes);
    std::memcpy(&arrival.head, memory.bytes().data(), std::min(received, sizeof(MessageHead)));
    arrival.head.check(arrival.peer);
    arrival.whole = fits_with_head(arrival.head.payload_bytes());
    const std::size_t with_head = arrival.whole ? arrival.head.payload_bytes() : 0;
    if (received != sizeof(MessageHead) + with_head) MessageHead().check(arrival.peer);
    if (with_head > kCopiedBytes) {
      arrival.payload = memory.part(sizeof(MessageHead), with_head);
    } else if (with_head != 0) {
      arrival.payload = take_block(with_head);
      std::memcpy(arrival.payload.writable().data(), memory.bytes().data() + sizeof(MessageHead),
                  with_head);
    }
    return arrival;
  }

  // MPI matches headers in order, but may complete a short message before an earlier long message.
  void deliver_in_order(Arrival arrival) {
    auto& [sent, taken, early] = peers_[static_cast<std::size_t>(arrival.peer)];
    if (early.empty() && arrival.head.sequence == taken) {
      ++taken;
      return events_.take(std::move(arrival));
    }
    early.emplace(arrival.head.sequence, std::move(arrival));
    for (auto next = early.find(taken); next != early.end(); next = early.find(taken)) {
      ++taken;
      events_.take(std::move(early.extract(next).mapped()));
    }
  }

  int rest_tag(const MessageHead& head) const {
    return kFirstRestTag + static_cast<int>(head.sequence % rest_tags_);
  }

  // Assigns the sequence number after a successful send, because later messages wait for each
  // number. MPI usually sends short messages at once, without a pending request.
  void send_head(int peer, MessageHead& head, Payload payload) {
    std::uint32_t& sent = peers_[static_cast<std::size_t>(peer)].sent;
    head.sequence = sent;
    const std::size_t bytes = sizeof(MessageHead) + payload.bytes.size();
    Block memory = take_block(bytes);
    std::byte* first = memory.writable().data();
    std::memcpy(first, &head, sizeof(MessageHead));
    if (!payload.bytes.empty())
      std::memcpy(first + sizeof(MessageHead), payload.bytes.data(), payload.bytes.size());
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(first, static_cast<int>(bytes), MPI_BYTE, peer, kHeadTag, communicator_,
                    &request),
          "MPI_Isend");
    ++sent;
    if (payload.job == nullptr && is_sent(request)) return;
    auto job = payload.job != nullptr ? std::move(payload.job) : std::make_shared<Job>();
    job->memory = std::move(memory);
    requests_.add(std::move(job), request);
  }

  void send_rest(int peer, const MessageHead& head, Payload payload) {
    const auto job = payload.job != nullptr ? std::move(payload.job) : std::make_shared<Job>();
    if (payload.block) job->memory = std::move(payload.block);
    for_each_piece(payload.bytes.size(), [&](std::size_t first, int bytes) {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Isend(payload.bytes.data() + first, bytes, MPI_BYTE, peer, rest_tag(head),
                      communicator_, &request),
            "MPI_Isend");
      requests_.add(job, request);
    });
  }

  MPI_Comm communicator_;
  const int thread_level_ = thread_level();
  const bool supports_device_memory_ = supports_device_memory();
  const bool yields_ = yields_when_idle();  // True if an idle MPI yields the core
  std::atomic<std::thread::id> user_ = std::this_thread::get_id();
  Events events_;
  int rank_ = 0;
  const std::vector<int> host_names_;  // lowest rank on the same host, by rank
  const std::uint32_t rest_tags_;      // number of tags
  std::size_t heads_ = 0;              // number of posted header receives
  Requests requests_;
  std::vector<Peer> peers_;  // by rank
};

}  // namespace

std::unique_ptr<Wire> make_wire(MPI_Comm communicator) {
  return std::make_unique<MpiWire>(communicator);
}

}  // namespace tersor::mpi
