// Implements rounds.h.
#include "comm/transport/host/rounds.h"

#include <tersor/align.h>
#include <tersor/buffer.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace tersor::host {
namespace {

constexpr std::size_t kAlignment = 16;
constexpr std::size_t kHeaderBytes = kAlignment;

std::size_t record_bytes(std::size_t bytes) { return kHeaderBytes + align_up(bytes, kAlignment); }

class GatherInRounds final : public HostTransfer {
 public:
  GatherInRounds(std::shared_ptr<Channel> channel, const Operation& operation,
                 const GatherWork& work);
  ~GatherInRounds() override {
    for (Batch& batch : batches_) cancel(batch);
  }

  void begin() override;
  bool step() override;
  std::vector<int> missing() const override { return {neighbour(1 << round_)}; }
  ConstByteSpan received(int rank) const override;

 private:
  int ranks() const { return channel().ranks(); }
  int neighbour(int distance) const { return (channel().rank() + distance + ranks()) % ranks(); }
  std::size_t records_of_round() const;
  void append(ConstByteSpan bytes);
  void post_round();
  void take_round();
  [[noreturn]] void refuse(int rank, const std::string& how) const;

  std::size_t capacity_;
  Envelope envelope_;
  ConstByteSpan send_;
  std::shared_ptr<Buffer> records_;
  std::vector<std::size_t> ends_;  // of the records that are there
  unsigned round_ = 0;
  std::vector<Outgoing> outgoing_;  // of each round
  std::vector<Incoming> incoming_;
  std::vector<Batch> batches_;
};

GatherInRounds::GatherInRounds(std::shared_ptr<Channel> channel, const Operation& operation,
                               const GatherWork& work)
    : HostTransfer(std::move(channel), operation),
      capacity_(work.capacity),
      envelope_(work.envelope),
      send_(work.send),
      records_(std::make_shared<Buffer>(static_cast<std::size_t>(ranks()) *
                                        record_bytes(work.capacity))) {
  const auto rounds = std::bit_width(static_cast<unsigned>(ranks() - 1));
  outgoing_ = std::vector<Outgoing>(rounds);
  incoming_ = std::vector<Incoming>(rounds);
  batches_ = std::vector<Batch>(rounds);
  ends_.reserve(static_cast<std::size_t>(ranks()));
}

void GatherInRounds::refuse(int rank, const std::string& how) const {
  Endpoint& endpoint = channel().endpoint();
  endpoint.raise(std::string(operation().name) + " on " + endpoint.name(channel().rank()) + ": " +
                 endpoint.name(rank) + " sends " + how);
  throw TransportError(endpoint.fault());
}

std::size_t GatherInRounds::records_of_round() const {
  const auto all = static_cast<std::size_t>(ranks());
  const std::size_t distance = std::size_t{1} << round_;
  return std::min(distance, all - distance);
}

void GatherInRounds::append(ConstByteSpan bytes) {
  std::byte* const record = records_->pointer() + (ends_.empty() ? 0 : ends_.back());
  const std::uint64_t length = bytes.size();
  std::memset(record, 0, kHeaderBytes);
  std::memcpy(record, &length, sizeof(length));
  std::byte* const content = record + kHeaderBytes;
  if (!bytes.empty()) std::memcpy(content, bytes.data(), bytes.size());
  const std::size_t padding = record_bytes(bytes.size()) - kHeaderBytes - bytes.size();
  std::memset(content + bytes.size(), 0, padding);
  ends_.push_back(static_cast<std::size_t>(content - records_->pointer()) + bytes.size() + padding);
}

void GatherInRounds::begin() {
  if (send_.size() > capacity_)
    refuse(channel().rank(), std::to_string(send_.size()) +
                                 " bytes where this rank takes at most " +
                                 std::to_string(capacity_));
  append(send_);
  post_round();
}

// Each round is between ranks that meet in no other one, so part 0 tells its messages apart.
void GatherInRounds::post_round() {
  const int distance = 1 << round_;
  const std::size_t records = records_of_round();
  outgoing_[round_] = {.peer = neighbour(-distance),
                       .payload = records_->span().first(ends_[records - 1])};
  Incoming& incoming = incoming_[round_];
  incoming.peer = neighbour(distance);
  incoming.least_bytes = records * kHeaderBytes;
  incoming.capacity = records * record_bytes(capacity_);
  Batch& batch = batches_[round_];
  address(batch, 0, envelope_);
  batch.keep_alive = records_;
  batch.outgoing = {&outgoing_[round_], 1};
  batch.incoming = {&incoming, 1};
  channel().endpoint().post(batch);
}

void GatherInRounds::take_round() {
  const Incoming& incoming = incoming_[round_];
  ConstByteSpan rest = incoming.payload.bytes();
  for (std::size_t record = 0; record < records_of_round(); ++record) {
    std::uint64_t length = capacity_ + 1;
    if (rest.size() >= kHeaderBytes) std::memcpy(&length, rest.data(), sizeof(length));
    if (length > capacity_ || record_bytes(length) > rest.size())
      refuse(incoming.peer, "records that are cut off or too long");
    append(rest.subspan(kHeaderBytes, length));
    rest = rest.subspan(record_bytes(length));
  }
  incoming_[round_].payload = {};
}

bool GatherInRounds::step() {
  while (batches_[round_].closed()) {
    take_round();
    if (++round_ == batches_.size()) return true;
    post_round();
  }
  return false;
}

ConstByteSpan GatherInRounds::received(int rank) const {
  require_done();
  const int distance = (rank - channel().rank() + ranks()) % ranks();
  if (distance == 0) return {};
  const std::byte* const record =
      records_->pointer() + ends_[static_cast<std::size_t>(distance) - 1];
  std::uint64_t length = 0;
  std::memcpy(&length, record, sizeof(length));
  return {record + kHeaderBytes, static_cast<std::size_t>(length)};
}

}  // namespace

std::unique_ptr<HostTransfer> make_gather_in_rounds(std::shared_ptr<Channel> channel,
                                                    const Operation& operation,
                                                    const GatherWork& work) {
  return std::make_unique<GatherInRounds>(std::move(channel), operation, work);
}

}  // namespace tersor::host
