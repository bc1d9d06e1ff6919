// Implements torch_wire.h.
#include "python_bindings/src/torch_wire.h"

#include <tersor/error.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <utility>

namespace tersor::python {
namespace {

using namespace std::chrono_literals;

constexpr auto kHeadsEndWithin = 200ms;  // after a payload's connection broke

bool travels_with_head(std::size_t payload_bytes) {
  return payload_bytes <= TorchWire::kMostBytesWithHead;
}

Messenger::Group payload_group(int from, int to) {
  return from < to ? Messenger::Group::kUpwards : Messenger::Group::kDownwards;
}

}  // namespace

struct TorchWire::Message {
  int peer;
  Block head;
  ConstByteSpan payload;  // what does not travel with the head
  std::shared_ptr<Job> job;
};

/// What came from a peer, in the order of its heads.
struct TorchWire::Letter {
  Arrival arrival;
  bool there = false;
};

struct TorchWire::Line {
  Line(int number, const PythonThread::Task& after)
      : peer(number), heads(after), payloads(after), sent(after) {}

  const int peer;
  std::atomic<bool> gone{false};                // it said goodbye
  std::atomic<bool> silent{false};              // its last head was read, or is not waited for
  std::deque<std::shared_ptr<Letter>> letters;  // not yet delivered
  PythonThread heads, payloads, sent;
};

TorchWire::TorchWire(nb::object messenger, int rank, std::vector<int> host_names)
    : messenger_(std::move(messenger)), rank_(rank), host_names_(std::move(host_names)) {}

TorchWire::~TorchWire() = default;

std::size_t TorchWire::wire_bytes(std::size_t payload_bytes) const {
  return kHeadBytes + (travels_with_head(payload_bytes) ? 0 : payload_bytes);
}

void TorchWire::start(Events events) {
  events_ = std::move(events);
  lines_.resize(static_cast<std::size_t>(ranks()));
  try {
    sender_ = std::make_unique<PythonThread>();
    for (int peer = 0; peer < ranks(); ++peer)
      if (peer != rank_) listen_to(peer);
  } catch (...) {  // there may be no more threads
    end(Parting::kAlone);
    throw;
  }
}

void TorchWire::listen_to(int peer) {
  auto& line = lines_[static_cast<std::size_t>(peer)];
  line = std::make_unique<Line>(peer, [this] {
    if (!left_alone_) events_.changed();
  });
  for (int ahead = 0; ahead < kHeadsAhead; ++ahead)
    line->heads.run([this, &of = *line] { post_head(of); });
}

// What waits is woken by an error, and what was started in between fails at once, so that no memory
// is in use that goes with its task; then the threads have nothing left to do. Where that cannot
// be, they wait for ever, and nobody for them.
bool TorchWire::end(Parting) {
  ending_ = true;
  {
    const nb::gil_scoped_acquire held;
    left_alone_ = !messenger_.abort();
  }
  if (left_alone_) return false;
  if (sender_ != nullptr) sender_->finish();
  for (const auto& line : lines_) {
    if (line == nullptr) continue;
    line->heads.finish();
    line->payloads.finish();
    line->sent.finish();
  }
  return true;
}

void TorchWire::send(int peer, MessageHead head, Payload payload) {
  auto job = payload.job != nullptr ? std::move(payload.job) : std::make_shared<Job>();
  Message message{.peer = peer, .head = take_block(kHeadBytes), .payload = {}, .job = job};
  std::byte* bytes = message.head.writable().data();
  std::memset(bytes, 0, kHeadBytes);
  std::memcpy(bytes, &head, sizeof(MessageHead));
  if (!travels_with_head(payload.bytes.size()))
    message.payload = payload.bytes;
  else if (!payload.bytes.empty())
    std::memcpy(bytes + sizeof(MessageHead), payload.bytes.data(), payload.bytes.size());
  job->memory = std::move(payload.block);
  post(std::move(message));
}

void TorchWire::post(Message message) {
  message.job->open = 1;
  under_way_.push_back(message.job);
  sender_->run([this, message = std::move(message)] { start_sending(message); });
}

void TorchWire::start_sending(const Message& message) {
  Line& line = *lines_[static_cast<std::size_t>(message.peer)];
  std::vector<Work> works;
  attempt(line, [&] {
    works.push_back(messenger_.send(message.peer, Messenger::Group::kHeads, message.head.bytes()));
    if (!message.payload.empty())
      works.push_back(
          messenger_.send(message.peer, payload_group(rank_, message.peer), message.payload));
  });
  line.sent.run([this, &line, message, works = std::move(works)]() mutable {
    await_sent(line, message, works);
  });
}

// The works go before the memory that they read.
void TorchWire::await_sent(Line& line, const Message& message, std::vector<Work>& works) {
  for (const Work& work : works) attempt(line, [&] { messenger_.wait(work); });
  works.clear();
  tell([this, job = message.job] { finish(job); });
}

void TorchWire::finish(const std::shared_ptr<Job>& job) {
  std::erase(under_way_, job);
  job->open = 0;
  if (job->done) job->done(*job);
}

void TorchWire::post_head(Line& line) {
  if (ending_) return;  // the thread may be about to drop what would wait for it
  attempt(line, [&] {
    const Block memory = take_block(kHeadBytes);
    Work work = messenger_.receive(line.peer, Messenger::Group::kHeads, memory.writable());
    line.heads.run([this, &line, memory, work = std::move(work)]() mutable {
      await_head(line, memory, work);
    });
  });
}

void TorchWire::await_head(Line& line, const Block& memory, Work& work) {
  const bool came = attempt(line, [&] { messenger_.wait(work); });
  work.reset();
  if (!came || line.gone) return;
  attempt(line, [&] { take_head(line, memory); });
  if (!line.gone) post_head(line);
}

// A fault overtakes what came before: its sender may not live to send the rest of that.
void TorchWire::take_head(Line& line, const Block& memory) {
  auto letter = std::make_shared<Letter>();
  Arrival& arrival = letter->arrival;
  arrival.peer = line.peer;
  std::memcpy(&arrival.head, memory.bytes().data(), sizeof(MessageHead));
  arrival.head.check(line.peer);
  line.gone = arrival.head.is_goodbye();
  const std::size_t bytes = arrival.head.payload_bytes();
  letter->there = travels_with_head(bytes);
  arrival.payload = letter->there ? memory.part(sizeof(MessageHead), bytes) : take_block(bytes);
  if (letter->there && arrival.head.is_fault()) return tell(taking(letter));
  {
    const std::lock_guard lock(mutex_);
    line.letters.push_back(letter);
  }
  if (letter->there)
    deliver(line);
  else
    receive_payload(line, letter);
}

void TorchWire::receive_payload(Line& line, const std::shared_ptr<Letter>& letter) {
  if (ending_) return;
  try {
    Work receipt = messenger_.receive(line.peer, payload_group(line.peer, rank_),
                                      letter->arrival.payload.writable());
    line.payloads.run([this, &line, letter, work = std::move(receipt)]() mutable {
      await_payload(line, letter, work);
    });
  } catch (const std::exception& error) {
    line.payloads.run([this, &line, letter, cause = std::string(error.what())] {
      lose(line, cause);
      drop(line, letter);
    });
  }
}

void TorchWire::await_payload(Line& line, const std::shared_ptr<Letter>& letter, Work& work) {
  const bool came = attempt(line, [&] { messenger_.wait(work); });
  work.reset();
  if (!came) return drop(line, letter);
  {
    const std::lock_guard lock(mutex_);
    letter->there = true;
  }
  deliver(line);
}

// Its payload never comes: what stands behind it, a goodbye perhaps, is not lost with it.
void TorchWire::drop(Line& line, const std::shared_ptr<Letter>& letter) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(line.letters, letter);
  }
  deliver(line);
}

// In the order of their heads.
void TorchWire::deliver(Line& line) {
  const std::lock_guard lock(mutex_);
  while (!line.letters.empty() && line.letters.front()->there) {
    events_to_poll_.push_back(taking(line.letters.front()));
    line.letters.pop_front();
  }
}

TorchWire::Event TorchWire::taking(std::shared_ptr<Letter> letter) {
  return [this, letter = std::move(letter)] { events_.take(std::move(letter->arrival)); };
}

void TorchWire::tell(Event event) {
  const std::lock_guard lock(mutex_);
  events_to_poll_.push_back(std::move(event));
}

bool TorchWire::attempt(Line& line, const std::function<void()>& call) {
  try {
    call();
    return true;
  } catch (const std::exception& error) {
    lose(line, error.what());
    return false;
  }
}

// Who said goodbye may go, and who ends here ends all that waits. A payload's connection may break
// before the last heads are read, one of which may say why the peer gave up.
void TorchWire::lose(Line& line, const std::string& cause) {
  if (!line.heads.is_current()) await_last_head(line);
  line.silent = true;
  if (ending_ || line.gone) return;
  tell([peer = line.peer, cause] {
    throw TransportError("the connection to rank " + std::to_string(peer) + " broke: " + cause);
  });
}

void TorchWire::await_last_head(const Line& line) const {
  const nb::gil_scoped_release released;
  const auto until = Clock::now() + kHeadsEndWithin;
  while (!ending_ && !line.gone && !line.silent && Clock::now() < until) pause();
}

bool TorchWire::poll() {
  std::vector<Event> events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_to_poll_);
  }
  std::exception_ptr error;  // the first; the others happen all the same
  for (const Event& event : events) try {
      event();
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  if (error != nullptr) std::rethrow_exception(error);
  return !events.empty();
}

void TorchWire::pause() const { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

}  // namespace tersor::python
