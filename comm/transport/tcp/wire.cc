#include "comm/transport/tcp/wire.h"

#include <pthread.h>
#include <tersor/error.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tersor::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kFlushedWithin = 1s;  // what was sent, before connections are closed

std::atomic<unsigned> forks{0};  // from the program's start to this process

void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

/// The count, which forks move on from the first call on.
unsigned counted_forks() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

Process::Process() : forks_(counted_forks()) {}

bool Process::is_this() const { return forks.load(std::memory_order_relaxed) == forks_; }

struct TcpWire::Peer {
  const int rank;
  Inbox inbox;
  std::string lost = {};  ///< why, once it is
  std::vector<std::unique_ptr<Lane>> lanes = {};

  bool over() const { return !lost.empty(); }
};

TcpWire::TcpWire(Place place) : place_(std::move(place)) {}

TcpWire::~TcpWire() = default;

void TcpWire::start(Events events) {
  events_ = std::move(events);
  if (ranks() == 1) return;
  for (int rank = 0; rank < ranks(); ++rank)
    peers_.push_back(rank == place_.rank ? nullptr : make_peer(rank));
  switchboard_ = std::make_unique<Switchboard>(place_, reactor_);
}

std::unique_ptr<TcpWire::Peer> TcpWire::make_peer(int rank) {
  auto made = std::make_unique<Peer>(
      Peer{rank, Inbox(
                     rank, place_.lanes, [this](std::size_t bytes) { return take_block(bytes); },
                     [this](Arrival arrival) { news_.push_back(std::move(arrival)); })});
  for (std::size_t lane = 0; lane < place_.lanes; ++lane)
    made->lanes.push_back(std::make_unique<Lane>(lane, made->inbox, owner_of(*made, lane)));
  return made;
}

Lane::Owner TcpWire::owner_of(Peer& peer, std::size_t lane) {
  return {.reactor = reactor_,
          .done = done_,
          .make_block = [this](std::size_t bytes) { return take_block(bytes); },
          .connect = [this, name = LaneName{peer.rank, lane}] { switchboard_->want(name); },
          .read =
              [&peer] {
                for (const auto& other : peer.lanes) other->look_again();
              },
          .read_rest = [&peer] { read_rest(peer); },
          .lose = [this, &peer](const std::string& cause) { lose(peer, cause); }};
}

template <typename Visitor>
void TcpWire::for_each_lane(Visitor&& visit) const {
  for (const auto& peer : peers_)
    if (peer != nullptr)
      for (const auto& lane : peer->lanes) visit(*lane);
}

// Lanes end one after the other: the first one's end says nothing of what waits on the others.
void TcpWire::read_rest(Peer& peer) {
  constexpr int kMostRounds = 1000;
  bool any = true;
  for (int round = 0; any && round < kMostRounds; ++round) {
    any = false;
    for (const auto& lane : peer.lanes) any = lane->read_rest() || any;
  }
}

// Who has said goodbye may go; what is still sent to it is dropped.
void TcpWire::lose(Peer& peer, const std::string& cause) {
  if (peer.over()) return;
  peer.lost = "the connection to rank " + std::to_string(peer.rank) + " broke: " + cause;
  std::vector<std::shared_ptr<Job>> dropped;
  for (auto& lane : peer.lanes) lane->close(dropped);
  if (peer.inbox.ended())
    done_.insert(done_.end(), dropped.begin(), dropped.end());
  else
    losses_.push_back({peer.rank, std::move(dropped)});
}

void TcpWire::send(int to, MessageHead head, Payload payload) {
  Peer& receiver = peer(to);
  if (!receiver.over())
    post(receiver, head, std::move(payload));
  else if (receiver.inbox.ended() && payload.job != nullptr)
    done_.push_back(std::move(payload.job));
  tell_done();
}

void TcpWire::post(Peer& peer, const MessageHead& head, Payload payload) {
  const std::size_t bytes = payload.bytes.size();
  const std::size_t parts = bytes < kLeastShared ? 1 : place_.lanes;
  if (payload.job != nullptr) payload.job->open = parts;
  for (std::size_t lane = 0; lane < parts; ++lane) {
    const Share share = share_of(bytes, lane, place_.lanes);
    peer.lanes[lane]->send({.head = head,
                            .headed = lane == 0,
                            .payload = payload.bytes.subspan(share.first, share.bytes),
                            .block = payload.block,
                            .job = payload.job});
  }
}

bool TcpWire::poll() {
  if (switchboard_ == nullptr) return false;  // alone, or ended
  const bool moved = move();
  tell_done();
  return tell_news() || moved;
}

// What is made after a turn looked is told by the next sleep; what was made before it, by nothing
// but a look of our own.
bool TcpWire::move() {
  bool moved = reactor_.turn();
  while (take_connections()) moved |= reactor_.turn();
  return moved;
}

bool TcpWire::take_connections() {
  auto connections = switchboard_->made();
  for (Connection& made : connections) {
    Peer& with = peer(made.name.peer);
    if (!made.socket)
      lose(with, made.failure);
    else if (!with.over())
      with.lanes[made.name.lane]->open(std::move(*made.socket));
  }
  return !connections.empty();
}

void TcpWire::tell_done() {
  for (const auto& job : std::exchange(done_, {}))
    if (job->done) job->done(*job);
}

bool TcpWire::tell_news() {
  const bool any = !news_.empty() || !losses_.empty();
  while (!news_.empty()) {
    Arrival arrival = std::move(news_.front());
    news_.pop_front();
    events_.take(std::move(arrival));
  }
  while (!losses_.empty()) {
    const Loss loss = std::move(losses_.front());
    losses_.pop_front();
    events_.lost(loss.peer, peer(loss.peer).lost);
  }
  return any;
}

void TcpWire::rest(int alarm, Clock::time_point until) const { reactor_.sleep(until, alarm); }

bool TcpWire::quiet() const {
  bool empty = true;
  for_each_lane([&](const Lane& lane) { empty = empty && lane.quiet(); });
  return empty;
}

std::size_t TcpWire::connections() const {
  std::size_t count = 0;
  for_each_lane([&](Lane& lane) { count += lane.socket() != nullptr; });
  return count;
}

void TcpWire::check_thread() {
  if (running()) return;
  throw InvalidArgument(
      "this process was forked from that of the transport's rank, and is none: a transport is used "
      "where it was made");
}

bool TcpWire::shows_its_end_to(int peer) const {
  return std::ranges::any_of(this->peer(peer).lanes,
                             [](const auto& lane) { return lane->socket() != nullptr; });
}

// What a peer still sends was for operations that are over.
void TcpWire::note_poisoned() {
  for (const auto& peer : peers_)
    if (peer != nullptr) peer->inbox.drop_payloads();
}

// A connection that is closed while something waits to be read drops what has not yet arrived at
// the other end: so that is waited for, and what comes is read. In a forked process all of it is
// the other one's: its connections, what waits for news of them, its thread.
bool TcpWire::end(Parting parting) {
  if (!running()) return false;
  if (ranks() == 1) return true;
  const auto until = Clock::now() + kFlushedWithin;
  while (parting == Parting::kAlone && !flushed() && Clock::now() < until) {
    if (!move()) reactor_.sleep(Clock::now() + 1ms);  // of what was acknowledged nobody tells
    news_.clear();
  }
  std::vector<std::shared_ptr<Job>> dropped;
  for_each_lane([&](Lane& lane) { lane.close(dropped); });
  switchboard_.reset();
  news_.clear();
  done_.clear();
  return true;
}

bool TcpWire::flushed() const {
  bool left = true;
  for_each_lane([&](Lane& lane) {
    const bool arrived = lane.socket() == nullptr || lane.socket()->unacknowledged() == 0;
    left = left && arrived && lane.quiet();
  });
  return left;
}

}  // namespace tersor::tcp
