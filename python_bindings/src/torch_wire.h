// Messages between processes over a process group of PyTorch, whatever its network.
//
// Head     Every message begins with one of kHeadBytes, a short payload inside: both ends of a
//          message must know its length. Each rank has kHeadsAhead receives for heads of each peer.
// Payload  A longer one follows on another group, straight from the sender's memory into a block.
// It
//          is received as soon as its head has come, whoever waits for it, so that what was sent
//          always leaves.
//
// PyTorch tells that a message has left or come only to a thread that blocks for it. So each peer
// has three: for heads, for payloads, for what was sent; each waits in the order of starting, which
// is that of the network. One more starts what is sent. They alone call Python, and hold no lock
// when they take the GIL; whoever uses this wire does so only to end it.
#pragma once

#include <nanobind/nanobind.h>
#include <tersor/network.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "python_bindings/src/python_thread.h"
#include "python_bindings/src/torch_messenger.h"

namespace tersor::python {

class TorchWire final : public Wire {
 public:
  static constexpr std::size_t kHeadBytes = 1024;
  static constexpr std::size_t kMostBytesWithHead = kHeadBytes - sizeof(MessageHead);
  static constexpr int kHeadsAhead = 4;

  /// `host_names`: for each rank a number that ranks of one host share. With the GIL held.
  TorchWire(nb::object messenger, int rank, std::vector<int> host_names);
  ~TorchWire() override;

  Traits traits() const override {
    return {.moves_alone = true, .copied_bytes = kMostBytesWithHead};
  }
  int rank() const override { return rank_; }
  int ranks() const override { return static_cast<int>(host_names_.size()); }
  std::vector<int> host_names() const override { return host_names_; }
  std::size_t wire_bytes(std::size_t payload_bytes) const override;

  void start(Events events) override;
  /// Without the GIL.
  bool end(Parting parting) override;

  void send(int peer, MessageHead head, Payload payload) override;

  bool poll() override;
  bool quiet() const override { return under_way_.empty(); }
  void pause() const override;

 private:
  struct Message;
  struct Letter;
  struct Line;
  using Event = std::function<void()>;

  // Of whoever uses the wire.
  void listen_to(int peer);
  void post(Message message);
  void finish(const std::shared_ptr<Job>& job);

  // Of the wire's threads, with the GIL held.
  void start_sending(const Message& message);
  void await_sent(Line& line, const Message& message, std::vector<Work>& works);
  void post_head(Line& line);
  void await_head(Line& line, const Block& memory, Work& work);
  void take_head(Line& line, const Block& memory);
  void receive_payload(Line& line, const std::shared_ptr<Letter>& letter);
  void await_payload(Line& line, const std::shared_ptr<Letter>& letter, Work& work);
  /// Runs `call` for a peer; an error of the network is told, and false returned.
  bool attempt(Line& line, const std::function<void()>& call);
  void lose(Line& line, const std::string& cause);
  void await_last_head(const Line& line) const;

  // Of any thread.
  void drop(Line& line, const std::shared_ptr<Letter>& letter);
  void deliver(Line& line);
  Event taking(std::shared_ptr<Letter> letter);
  void tell(Event event);

  const Messenger messenger_;
  const int rank_;
  const std::vector<int> host_names_;
  Events events_;
  std::vector<std::shared_ptr<Job>> under_way_;  // what is sent and has not left

  std::atomic<bool> ending_{false};
  std::atomic<bool> left_alone_{false};  // ended, but its threads still wait
  std::mutex mutex_;                     // of the events, and of the lines' letters
  std::vector<Event> events_to_poll_;
  std::vector<std::unique_ptr<Line>> lines_;  // by peer; of this rank itself: null
  std::unique_ptr<PythonThread> sender_;
};

}  // namespace tersor::python
