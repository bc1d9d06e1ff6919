#include "comm/transport/tcp/message_reader.h"

#include <tersor/error.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace tersor::tcp {
namespace {

constexpr std::size_t kShareAlignment = 4096;
constexpr std::size_t kWasteBytes = 64 * 1024;
constexpr std::uint64_t kMostPayloadBytes = std::uint64_t{1} << 40;

}  // namespace

Share share_of(std::size_t payload_bytes, std::size_t connection, std::size_t connections) {
  if (payload_bytes < kLeastShared) return {0, connection == 0 ? payload_bytes : 0};
  const std::size_t even = (payload_bytes + connections - 1) / connections;
  const std::size_t step = (even + kShareAlignment - 1) / kShareAlignment * kShareAlignment;
  const std::size_t first = std::min(connection * step, payload_bytes);
  return {first, std::min(step, payload_bytes - first)};
}

MessageReader::MessageReader(int peer, std::size_t connections, MakeBlock make_block, Take take)
    : peer_(peer),
      make_block_(std::move(make_block)),
      take_(std::move(take)),
      due_(connections),
      stage_(kStageBytes) {}

// The memory after a payload holds the next header, to save a separate system call. Long payloads
// leave only this space, to copy no byte of the next payload.
ReadSpaces MessageReader::spaces(std::size_t connection) {
  if (!due_[connection].empty()) {
    const Due& due = due_[connection].front();
    const ByteSpan space = space_of(due);
    const bool last = space.size() == due.bytes;
    return {space,
            connection == 0 && last ? ByteSpan(stage_).first(sizeof(MessageHead)) : ByteSpan()};
  }
  return {connection == 0 ? free_stage() : ByteSpan(), ByteSpan()};
}

ByteSpan MessageReader::space_of(const Due& due) {
  if (due.target != nullptr) return {due.target, due.bytes};
  waste_.resize(kWasteBytes);
  return ByteSpan(waste_).first(std::min(due.bytes, kWasteBytes));
}

ByteSpan MessageReader::free_stage() {
  const std::size_t limit = heads_alone_ ? sizeof(MessageHead) : kStageBytes;
  return ByteSpan(stage_).subspan(staged_, limit - staged_);
}

void MessageReader::came(std::size_t connection, std::size_t bytes) {
  const std::size_t wanted = due_[connection].empty() ? 0 : due_[connection].front().bytes;
  const std::size_t filled = std::min(bytes, wanted);
  if (filled != 0) fill(connection, filled);
  if (connection == 0) {
    staged_ += bytes - filled;
    read_stage();
  }
  deliver();
}

void MessageReader::fill(std::size_t connection, std::size_t bytes) {
  Due& due = due_[connection].front();
  due.bytes -= bytes;
  if (due.target != nullptr) due.target += bytes;
  due.message->missing -= bytes;
  if (due.bytes == 0) due_[connection].pop_front();
}

// Moves an incomplete header to the front.
void MessageReader::read_stage() {
  while (due_[0].empty() && staged_ - read_ >= sizeof(MessageHead)) {
    MessageHead head;
    std::memcpy(&head, stage_.data() + read_, sizeof head);
    read_ += sizeof head;
    open_message(head);
    fill_from_stage();
  }
  std::memmove(stage_.data(), stage_.data() + read_, staged_ - read_);
  staged_ -= std::exchange(read_, 0);
}

void MessageReader::open_message(const MessageHead& head) {
  head.check(peer_);
  const std::size_t bytes = head.payload_bytes();
  if (bytes > kMostPayloadBytes)
    throw TransportError("rank " + std::to_string(peer_) + " announces a message of " +
                         std::to_string(bytes) + " bytes, more than " +
                         std::to_string(kMostPayloadBytes));
  PartialMessage& message = partial_.emplace_back();
  message.arrival.head = head;
  message.arrival.peer = peer_;
  message.missing = bytes;
  heads_alone_ = bytes > kStageBytes;
  ended_ = ended_ || head.is_goodbye();
  if (bytes != 0) expect(message);
}

void MessageReader::expect(PartialMessage& message) {
  if (!dropping_) message.arrival.payload = make_block_(message.missing);
  std::byte* const target = message.arrival.payload.writable().data();
  const std::size_t bytes = message.missing;
  const std::size_t parts = message.arrival.head.is_fault() ? 1 : due_.size();
  for (std::size_t connection = 0; connection < parts; ++connection) {
    const Share share = share_of(bytes, connection, parts);
    if (share.bytes != 0)
      due_[connection].push_back(
          {share.bytes, dropping_ ? nullptr : target + share.first, &message});
  }
}

void MessageReader::fill_from_stage() {
  if (due_[0].empty() || staged_ == read_) return;
  const Due& due = due_[0].front();
  const std::size_t bytes = std::min(due.bytes, staged_ - read_);
  if (due.target != nullptr) std::memcpy(due.target, stage_.data() + read_, bytes);
  read_ += bytes;
  fill(0, bytes);
}

// Delivers in the order of headers, except for a fault: the sender may not live to send the earlier
// messages.
void MessageReader::deliver() {
  if (!partial_.empty() && partial_.back().missing == 0 &&
      partial_.back().arrival.head.is_fault()) {
    take_(std::move(partial_.back().arrival));
    partial_.pop_back();
  }
  while (!partial_.empty() && partial_.front().missing == 0) {
    take_(std::move(partial_.front().arrival));
    partial_.pop_front();
  }
}

}  // namespace tersor::tcp
