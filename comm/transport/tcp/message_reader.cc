#include "comm/transport/tcp/message_reader.h"

#include <tersor/error.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace tersor::tcp {
namespace {

constexpr std::size_t kShareAlignment = 4096;
constexpr std::size_t kDiscardBufferBytes = 64 * 1024;
constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 40;

}  // namespace

Share share_of(std::size_t payload_bytes, std::size_t connection, std::size_t connections) {
  if (payload_bytes < kMinShared) return {0, connection == 0 ? payload_bytes : 0};
  const std::size_t even = (payload_bytes + connections - 1) / connections;
  const std::size_t step = (even + kShareAlignment - 1) / kShareAlignment * kShareAlignment;
  const std::size_t first = std::min(connection * step, payload_bytes);
  return {first, std::min(step, payload_bytes - first)};
}

MessageReader::MessageReader(int peer, std::size_t connections, MakeBlock make_block, Sink sink)
    : peer_(peer),
      make_block_(std::move(make_block)),
      sink_(std::move(sink)),
      reads_(connections),
      stage_(kStageBytes) {}

// The memory after a payload holds the next header, to save a separate system call. Long payloads
// leave only this space, to copy no byte of the next payload.
ReadBuffers MessageReader::buffers(std::size_t connection) {
  if (!reads_[connection].empty()) {
    const PendingRead& read = reads_[connection].front();
    const ByteSpan buffer = buffer_of(read);
    const bool last = buffer.size() == read.bytes;
    return {buffer,
            connection == 0 && last ? ByteSpan(stage_).first(sizeof(MessageHead)) : ByteSpan()};
  }
  return {connection == 0 ? free_buffer() : ByteSpan(), ByteSpan()};
}

ByteSpan MessageReader::buffer_of(const PendingRead& read) {
  if (read.target != nullptr) return {read.target, read.bytes};
  discard_buffer_.resize(kDiscardBufferBytes);
  return ByteSpan(discard_buffer_).first(std::min(read.bytes, kDiscardBufferBytes));
}

ByteSpan MessageReader::free_buffer() {
  const std::size_t limit = headers_only_ ? sizeof(MessageHead) : kStageBytes;
  return ByteSpan(stage_).subspan(staged_, limit - staged_);
}

void MessageReader::on_received(std::size_t connection, std::size_t bytes) {
  const std::size_t expected = reads_[connection].empty() ? 0 : reads_[connection].front().bytes;
  const std::size_t filled = std::min(bytes, expected);
  if (filled != 0) fill(connection, filled);
  if (connection == 0) {
    staged_ += bytes - filled;
    read_stage();
  }
  deliver();
}

void MessageReader::fill(std::size_t connection, std::size_t bytes) {
  PendingRead& read = reads_[connection].front();
  read.bytes -= bytes;
  if (read.target != nullptr) read.target += bytes;
  read.message->missing -= bytes;
  if (read.bytes == 0) reads_[connection].pop_front();
}

// Moves an incomplete header to the front.
void MessageReader::read_stage() {
  while (reads_[0].empty() && staged_ - read_ >= sizeof(MessageHead)) {
    MessageHead head;
    std::memcpy(&head, stage_.data() + read_, sizeof head);
    read_ += sizeof head;
    begin_message(head);
    fill_from_stage();
  }
  std::memmove(stage_.data(), stage_.data() + read_, staged_ - read_);
  staged_ -= std::exchange(read_, 0);
}

void MessageReader::begin_message(const MessageHead& head) {
  head.check(peer_);
  const std::size_t bytes = head.payload_bytes();
  if (bytes > kMaxPayloadBytes)
    throw TransportError("rank " + std::to_string(peer_) + " announces a message of " +
                         std::to_string(bytes) + " bytes, more than " +
                         std::to_string(kMaxPayloadBytes));
  PartialMessage& message = partial_.emplace_back();
  message.arrival.head = head;
  message.arrival.peer = peer_;
  message.missing = bytes;
  headers_only_ = bytes > kStageBytes;
  received_goodbye_ = received_goodbye_ || head.is_goodbye();
  if (bytes != 0) expect(message);
}

void MessageReader::expect(PartialMessage& message) {
  if (!discarding_) message.arrival.payload = make_block_(message.missing);
  std::byte* const target = message.arrival.payload.writable().data();
  const std::size_t bytes = message.missing;
  const std::size_t parts = message.arrival.head.is_fault() ? 1 : reads_.size();
  for (std::size_t connection = 0; connection < parts; ++connection) {
    const Share share = share_of(bytes, connection, parts);
    if (share.bytes != 0)
      reads_[connection].push_back(
          {share.bytes, discarding_ ? nullptr : target + share.first, &message});
  }
}

void MessageReader::fill_from_stage() {
  if (reads_[0].empty() || staged_ == read_) return;
  const PendingRead& read = reads_[0].front();
  const std::size_t bytes = std::min(read.bytes, staged_ - read_);
  if (read.target != nullptr) std::memcpy(read.target, stage_.data() + read_, bytes);
  read_ += bytes;
  fill(0, bytes);
}

// Delivers in the order of headers, except for a fault: the sender may not live to send the earlier
// messages.
void MessageReader::deliver() {
  if (!partial_.empty() && partial_.back().missing == 0 &&
      partial_.back().arrival.head.is_fault()) {
    sink_(std::move(partial_.back().arrival));
    partial_.pop_back();
  }
  while (!partial_.empty() && partial_.front().missing == 0) {
    sink_(std::move(partial_.front().arrival));
    partial_.pop_front();
  }
}

}  // namespace tersor::tcp
