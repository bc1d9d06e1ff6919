// What servers and workers say to each other on a lifeline: a note, then a frame behind some.
#pragma once

#include <tersor/buffer.h>
#include <tersor/error.h>
#include <tersor/transport.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace tersor {

enum class Says : std::uint32_t {
  kJoin = 1,  // a worker; signature
  kPush,      // its clock, a frame
  kPull,      // its clock
  kLeave,
  kJoined,   // a server; the clock to begin with
  kTaken,    // a push's clock: the weights have moved by it
  kWeights,  // the clock of the pull, a frame
  kRefused,  // a text
};

/// Before each message's frame or text. Little-endian.
struct Note {
  Says says = Says::kJoin;
  std::uint32_t clock = 0;
  std::uint64_t signature = 0;
  std::uint64_t bytes = 0;  ///< behind it
  std::uint64_t reserved = 0;
};
static_assert(sizeof(Note) == 32);

inline constexpr std::size_t kMostText = 16 * 1024;  ///< of a refusal, in bytes

/// `keep_alive`: what is sent lies in, which the network may read when nobody waits any more.
inline Operation note_operation(std::shared_ptr<const void> keep_alive = {}) {
  constexpr auto kForEver = std::chrono::hours(24 * 365);
  return {.name = "parameter server",
          .tag = kUnorderedTag,
          .timeout = kForEver,
          .keep_alive = std::move(keep_alive)};
}

/// Throws WireError where that is no note with what it says is behind it.
inline std::pair<Note, ConstByteSpan> read_note(ConstByteSpan message) {
  Note note;
  if (message.size() < sizeof(note)) throw WireError("parameter server: a message too short");
  std::memcpy(&note, message.data(), sizeof(note));
  if (note.bytes > message.size() - sizeof(note))
    throw WireError("parameter server: a message that was cut");
  return {note, message.subspan(sizeof(note), note.bytes)};
}

/// Messages that may still be on their way to a rank.
class Outbox {
 public:
  Outbox(Transport& lifeline, int peer) : lifeline_(&lifeline), peer_(peer) {}

  /// `fill` writes at most `capacity` bytes behind the note, and returns how many. Returns the
  /// bytes of the message. Throws PeerLost.
  template <typename Fill>
  std::size_t send(Note note, std::size_t capacity, const Fill& fill) {
    forget_sent();
    const auto bytes = std::make_shared<Buffer>(sizeof(note) + capacity);
    note.bytes = fill(bytes->span().subspan(sizeof(note)));
    std::memcpy(bytes->pointer(), &note, sizeof(note));
    sent_.push_back(lifeline_->send(note_operation(bytes), peer_,
                                    bytes->span().first(sizeof(note) + note.bytes)));
    return sizeof(note) + note.bytes;
  }
  void send(const Note& note, std::string_view text = {}) {
    text = text.substr(0, kMostText);
    send(note, text.size(), [&](ByteSpan space) {
      return text.copy(reinterpret_cast<char*>(space.data()), text.size());
    });
  }

  /// The messages that have not left yet.
  std::size_t unsent() {
    forget_sent();
    return sent_.size();
  }

 private:
  void forget_sent() {
    while (!sent_.empty() && sent_.front().test()) sent_.pop_front();
  }

  Transport* lifeline_;
  int peer_;
  std::deque<Handle> sent_;
};

}  // namespace tersor
