#include "comm/transport/tcp/send_queue.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace tersor::tcp {

std::array<ConstByteSpan, 2> SendItem::remaining() const {
  const std::size_t head_bytes = has_header ? sizeof(MessageHead) : 0;
  const ConstByteSpan all = std::as_bytes(std::span(&head, 1)).first(head_bytes);
  if (sent < head_bytes) return {all.subspan(sent), payload};
  return {ConstByteSpan(), payload.subspan(sent - head_bytes)};
}

// Copies to the same offset, because `sent` counts from the first byte of the header.
void SendItem::copy_unsent(const MakeBlock& make_block) {
  const ConstByteSpan unsent = remaining()[1];
  if (unsent.empty() || block) return;
  block = make_block(payload.size());
  const ByteSpan copy = block.writable().last(unsent.size());
  std::memcpy(copy.data(), unsent.data(), unsent.size());
  payload = block.bytes();
}

bool SendQueue::has_only_goodbyes() const {
  return std::ranges::all_of(
      items_, [](const SendItem& item) { return item.has_header && item.head.is_goodbye(); });
}

void SendQueue::add_first(SendItem item) {
  const bool started = !items_.empty() && items_.front().sent != 0;
  items_.insert(items_.begin() + (started ? 1 : 0), std::move(item));
}

void SendQueue::copy_last(const MakeBlock& make_block) {
  if (items_.empty()) return;
  SendItem& item = items_.back();
  if (item.job == nullptr || item.job->keep_alive == nullptr) item.copy_unsent(make_block);
}

void SendQueue::copy_unsent(const Job* job, const MakeBlock& make_block) {
  for (SendItem& item : items_)
    if (item.job.get() == job) item.copy_unsent(make_block);
}

WriteBuffers SendQueue::next() const {
  WriteBuffers buffers{};
  std::size_t count = 0;
  for (const SendItem& item : items_) {
    if (count + 2 > buffers.size()) break;
    for (const ConstByteSpan buffer : item.remaining())
      if (!buffer.empty()) buffers[count++] = buffer;
  }
  return buffers;
}

void SendQueue::on_sent(std::size_t bytes, std::vector<std::shared_ptr<Job>>& done) {
  while (!items_.empty()) {
    SendItem& item = items_.front();
    const std::size_t count = std::min(bytes, item.bytes() - item.sent);
    item.sent += count;
    bytes -= count;
    if (item.sent != item.bytes()) return;
    finish_part(std::move(item.job), done);
    items_.pop_front();
  }
}

void SendQueue::drop(std::vector<std::shared_ptr<Job>>& done) {
  for (SendItem& item : items_) finish_part(std::move(item.job), done);
  items_.clear();
}

void finish_part(std::shared_ptr<Job> job, std::vector<std::shared_ptr<Job>>& done) {
  if (job != nullptr && --job->open == 0) done.push_back(std::move(job));
}

}  // namespace tersor::tcp
