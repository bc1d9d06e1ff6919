#include "comm/transport/tcp/outbox.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace tersor::tcp {

std::array<ConstByteSpan, 2> Parcel::rest() const {
  const std::size_t head_bytes = headed ? sizeof(MessageHead) : 0;
  const ConstByteSpan all = std::as_bytes(std::span(&head, 1)).first(head_bytes);
  if (sent < head_bytes) return {all.subspan(sent), payload};
  return {ConstByteSpan(), payload.subspan(sent - head_bytes)};
}

bool Outbox::only_goodbyes() const {
  return std::ranges::all_of(
      parcels_, [](const Parcel& parcel) { return parcel.headed && parcel.head.is_goodbye(); });
}

void Outbox::add_first(Parcel parcel) {
  const bool begun = !parcels_.empty() && parcels_.front().sent != 0;
  parcels_.insert(parcels_.begin() + (begun ? 1 : 0), std::move(parcel));
}

void Outbox::keep_last(const std::function<Block(std::size_t bytes)>& make_block) {
  if (parcels_.empty()) return;
  Parcel& parcel = parcels_.back();
  const bool owned = parcel.job != nullptr && parcel.job->keep_alive != nullptr;
  if (parcel.payload.empty() || parcel.block || owned) return;
  parcel.block = make_block(parcel.payload.size());
  std::memcpy(parcel.block.writable().data(), parcel.payload.data(), parcel.payload.size());
  parcel.payload = parcel.block.bytes();
}

Pieces Outbox::next() const {
  Pieces pieces{};
  std::size_t count = 0;
  for (const Parcel& parcel : parcels_) {
    if (count + 2 > pieces.size()) break;
    for (const ConstByteSpan piece : parcel.rest())
      if (!piece.empty()) pieces[count++] = piece;
  }
  return pieces;
}

void Outbox::left(std::size_t bytes, std::vector<std::shared_ptr<Job>>& done) {
  while (!parcels_.empty()) {
    Parcel& parcel = parcels_.front();
    const std::size_t now = std::min(bytes, parcel.bytes() - parcel.sent);
    parcel.sent += now;
    bytes -= now;
    if (parcel.sent != parcel.bytes()) return;
    finish_part(std::move(parcel.job), done);
    parcels_.pop_front();
  }
}

void Outbox::drop(std::vector<std::shared_ptr<Job>>& done) {
  for (Parcel& parcel : parcels_) finish_part(std::move(parcel.job), done);
  parcels_.clear();
}

void finish_part(std::shared_ptr<Job> job, std::vector<std::shared_ptr<Job>>& done) {
  if (job != nullptr && --job->open == 0) done.push_back(std::move(job));
}

}  // namespace tersor::tcp
