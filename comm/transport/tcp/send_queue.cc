#include "comm/transport/tcp/send_queue.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace tersor::tcp {

std::array<ConstByteSpan, 2> SendItem::rest() const {
  const std::size_t head_bytes = headed ? sizeof(MessageHead) : 0;
  const ConstByteSpan all = std::as_bytes(std::span(&head, 1)).first(head_bytes);
  if (sent < head_bytes) return {all.subspan(sent), payload};
  return {ConstByteSpan(), payload.subspan(sent - head_bytes)};
}

// Copies to the same offset, because `sent` counts from the first byte of the header.
void SendItem::keep(const MakeBlock& make_block) {
  const ConstByteSpan unsent = rest()[1];
  if (unsent.empty() || block) return;
  block = make_block(payload.size());
  const ByteSpan copy = block.writable().last(unsent.size());
  std::memcpy(copy.data(), unsent.data(), unsent.size());
  payload = block.bytes();
}

bool SendQueue::only_goodbyes() const {
  return std::ranges::all_of(
      items_, [](const SendItem& item) { return item.headed && item.head.is_goodbye(); });
}

void SendQueue::add_first(SendItem item) {
  const bool begun = !items_.empty() && items_.front().sent != 0;
  items_.insert(items_.begin() + (begun ? 1 : 0), std::move(item));
}

void SendQueue::keep_last(const MakeBlock& make_block) {
  if (items_.empty()) return;
  SendItem& item = items_.back();
  if (item.job == nullptr || item.job->keep_alive == nullptr) item.keep(make_block);
}

void SendQueue::keep(const Job* job, const MakeBlock& make_block) {
  for (SendItem& item : items_)
    if (item.job.get() == job) item.keep(make_block);
}

Pieces SendQueue::next() const {
  Pieces pieces{};
  std::size_t count = 0;
  for (const SendItem& item : items_) {
    if (count + 2 > pieces.size()) break;
    for (const ConstByteSpan piece : item.rest())
      if (!piece.empty()) pieces[count++] = piece;
  }
  return pieces;
}

void SendQueue::left(std::size_t bytes, std::vector<std::shared_ptr<Job>>& done) {
  while (!items_.empty()) {
    SendItem& item = items_.front();
    const std::size_t now = std::min(bytes, item.bytes() - item.sent);
    item.sent += now;
    bytes -= now;
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
