// Implements wire.h.
#include "comm/transport/mpi/wire.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "comm/transport/mpi/library.h"

namespace tersor::mpi {
namespace {

constexpr int kHeadTag = 1;
constexpr int kFirstRestTag = 2;
constexpr std::size_t kLeastHeads = 8;
constexpr std::size_t kMostHeads = 64;
constexpr std::size_t kCopiedBytes = 8 * 1024;  // shorter payloads leave the head's block
// Pieces that Open MPI sends over TCP without asking first (its eager limit is 64 KiB with its own
// header): a receiver that computes holds nobody up. On four hosts at 1 Gbit/s int8 took 0.23 s for
// 64 MiB so, and 0.31 s in one piece. Long payloads go in longer ones, so that requests stay few.
constexpr std::size_t kEagerPieceBytes = 63 * 1024;
constexpr std::size_t kMostEagerPieces = 64;
constexpr std::size_t kLongPieceBytes = std::size_t{1} << 30;  // MPI counts in int

std::uint32_t rest_tags_of(MPI_Comm communicator) {
  int* bound = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(communicator, MPI_TAG_UB, &bound, &found), "MPI_Comm_get_attr");
  return static_cast<std::uint32_t>((found != 0 ? *bound : 32'767) - kFirstRestTag);
}

/// Calls `visit(first, bytes)` for each piece of a payload.
template <typename Visitor>
void for_each_piece(std::size_t bytes, Visitor&& visit) {
  const bool eager = bytes <= kMostEagerPieces * kEagerPieceBytes;
  const std::size_t step = eager ? kEagerPieceBytes : kLongPieceBytes;
  for (std::size_t first = 0; first < bytes; first += step)
    visit(first, static_cast<int>(std::min(step, bytes - first)));
}

}  // namespace

Wire::Wire(MPI_Comm communicator, host::BlockPool& pool, Take take)
    : communicator_(communicator), pool_(pool), take_(std::move(take)) {
  check(MPI_Comm_rank(communicator, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(communicator, &ranks_), "MPI_Comm_size");
  rest_tags_ = rest_tags_of(communicator);
  const auto ranks = static_cast<std::size_t>(ranks_);
  sent_.resize(ranks);
  taken_.resize(ranks);
  early_.resize(ranks);
  const std::size_t heads = ranks == 1 ? 0 : std::clamp(4 * ranks, kLeastHeads, kMostHeads);
  while (heads_ < heads) {
    post_head();
    ++heads_;
  }
}

Wire::~Wire() { requests_.cancel_all(); }

void Wire::post_head() {
  auto job = std::make_shared<Job>();
  job->memory = pool_.take(kWholeBytes);
  job->done = [this](Job& done, const MPI_Status& status) { head_came(done, status); };
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(job->memory.writable().data(), static_cast<int>(kWholeBytes), MPI_BYTE,
                  MPI_ANY_SOURCE, kHeadTag, communicator_, &request),
        "MPI_Irecv");
  requests_.add(std::move(job), request);
}

void Wire::head_came(const Job& job, const MPI_Status& status) {
  post_head();
  take_in_order(parse(job.memory, status));
}

Arrival Wire::parse(const host::Block& memory, const MPI_Status& status) {
  int bytes = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  Arrival arrival{.head = {}, .payload = {}, .peer = status.MPI_SOURCE};
  const std::size_t whole = static_cast<std::size_t>(bytes);
  if (whole >= sizeof(Head)) std::memcpy(&arrival.head, memory.bytes().data(), sizeof(Head));
  const host::Envelope &came = arrival.head.envelope, ours;
  const std::size_t with_head = travels_whole(came.bytes) ? came.bytes : 0;
  if (came.magic != ours.magic || came.version != ours.version || whole != sizeof(Head) + with_head)
    throw TransportError("rank " + std::to_string(arrival.peer) +
                         " speaks another version of the transport: all ranks need the same "
                         "format version of Tersor");
  if (with_head > kCopiedBytes) {
    arrival.payload = memory.part(sizeof(Head), with_head);
  } else if (with_head != 0) {
    arrival.payload = pool_.take(with_head);
    std::memcpy(arrival.payload.writable().data(), memory.bytes().data() + sizeof(Head), with_head);
  }
  return arrival;
}

// MPI matches heads in order, but may finish a short one before a long one that came first.
void Wire::take_in_order(Arrival arrival) {
  const auto peer = static_cast<std::size_t>(arrival.peer);
  auto& early = early_[peer];
  early.emplace(arrival.head.sequence, std::move(arrival));
  for (auto next = early.find(taken_[peer]); next != early.end(); next = early.find(taken_[peer])) {
    ++taken_[peer];
    take_(std::move(early.extract(next).mapped()));
  }
}

int Wire::rest_tag(const Head& head) const {
  return kFirstRestTag + static_cast<int>(head.sequence % rest_tags_);
}

// A head that could not be sent takes no number: what follows must not wait for it.
std::shared_ptr<const Job> Wire::send_head(int peer, Head& head, ConstByteSpan payload) {
  std::uint32_t& sent = sent_[static_cast<std::size_t>(peer)];
  head.sequence = sent;
  auto job = std::make_shared<Job>();
  job->memory = pool_.take(sizeof(Head) + payload.size());
  std::byte* bytes = job->memory.writable().data();
  std::memcpy(bytes, &head, sizeof(Head));
  if (!payload.empty()) std::memcpy(bytes + sizeof(Head), payload.data(), payload.size());
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(bytes, static_cast<int>(sizeof(Head) + payload.size()), MPI_BYTE, peer, kHeadTag,
                  communicator_, &request),
        "MPI_Isend");
  ++sent;
  requests_.add(job, request);
  return job;
}

void Wire::send_rest(int peer, const Head& head, ConstByteSpan payload,
                     const std::shared_ptr<Job>& job) {
  for_each_piece(payload.size(), [&](std::size_t first, int bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(payload.data() + first, bytes, MPI_BYTE, peer, rest_tag(head), communicator_,
                    &request),
          "MPI_Isend");
    requests_.add(job, request);
  });
}

std::shared_ptr<const Job> Wire::send(int peer, Head head, ConstByteSpan payload) {
  head.envelope.bytes = payload.size();
  if (travels_whole(payload.size())) return send_head(peer, head, payload);
  host::Block copy = pool_.take(payload.size());
  std::memcpy(copy.writable().data(), payload.data(), payload.size());
  return send_block(peer, head, std::move(copy));
}

std::shared_ptr<const Job> Wire::send_block(int peer, Head head, host::Block payload) {
  head.envelope.bytes = payload.bytes().size();
  if (travels_whole(head.envelope.bytes)) return send_head(peer, head, payload.bytes());
  auto job = std::make_shared<Job>();
  job->memory = std::move(payload);
  send_head(peer, head, {});
  send_rest(peer, head, job->memory.bytes(), job);
  return job;
}

bool Wire::send_from(int peer, Head head, ConstByteSpan payload, const std::shared_ptr<Job>& job) {
  if (travels_whole(payload.size())) {
    send(peer, head, payload);
    return false;
  }
  head.envelope.bytes = payload.size();
  send_head(peer, head, {});
  send_rest(peer, head, payload, job);
  return true;
}

void Wire::receive_rest(const Arrival& arrival, ByteSpan into, const std::shared_ptr<Job>& job) {
  for_each_piece(into.size(), [&](std::size_t first, int bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(into.data() + first, bytes, MPI_BYTE, arrival.peer, rest_tag(arrival.head),
                    communicator_, &request),
          "MPI_Irecv");
    requests_.add(job, request);
  });
}

}  // namespace tersor::mpi
