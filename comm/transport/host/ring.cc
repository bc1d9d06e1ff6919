#include "comm/transport/host/ring.h"

#include <tersor/align.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/transport/host/step_transfer.h"

namespace tersor::host {
namespace {

std::size_t bytes_of_all(std::span<const ValueSpan> parts) {
  std::size_t bytes = 0;
  for (const ValueSpan& part : parts) bytes += part.bytes();
  return bytes;
}

ConstByteSpan bytes_of(ConstValueSpan values) { return {values.pointer(), values.bytes()}; }

void copy_values(ValueSpan into, ConstByteSpan from) {
  if (!from.empty()) std::memcpy(into.pointer(), from.data(), from.size());
}

/// Copies the values, part after part.
void copy_parts(std::span<const ValueSpan> parts, std::byte* into) {
  for (const ValueSpan& part : parts) {
    if (!part.empty()) std::memcpy(into, part.pointer(), part.bytes());
    into += part.bytes();
  }
}

class Ring final : public HostTransfer {
 public:
  Ring(const Start& start, RingWork work)
      : HostTransfer(start),
        work_(std::move(work)),
        chunks_(work_.parts, start.envelope.dtype),
        ranks_(static_cast<int>(work_.parts.size())),
        messages_(2 * (work_.parts.size() - 1) * chunks_.chunks),
        window_(std::min(messages_, RingTuning::kWindow)),
        outgoing_(window_),
        incoming_(window_),
        sends_(window_),
        receives_(window_) {}

  ~Ring() override {
    for (Batch& batch : sends_) cancel(batch);
    for (Batch& batch : receives_) cancel(batch);
  }

  void begin() override {
    for (std::size_t index = 0; index < window_; ++index) post_receive(index);
    send_ready();
  }

  bool step() override {
    send_ready();
    while (process_next()) send_ready();
    return processed_ == messages_ && freed_ == messages_;
  }

  std::vector<int> missing() const override {
    const bool has_arrived = processed_ == messages_ || receives_[processed_ % window_].closed();
    return {neighbour(has_arrived ? 1 : ranks_ - 1)};
  }

 private:
  int neighbour(int distance) const { return (channel().rank() + distance) % ranks_; }

  /// The chunk of message `index`: sent if `shift` is 1, received if `shift` is 2.
  ValueSpan chunk(std::size_t index, int shift) const {
    const auto step = static_cast<int>(index / chunks_.chunks);
    const int part = neighbour(2 * ranks_ - shift - step);
    return chunks_.of(work_.parts[static_cast<std::size_t>(part)], index % chunks_.chunks);
  }

  // Messages of the first step need only space in the window. Later messages forward a chunk and
  // wait for its arrival. The window advances with received chunks, so no rank runs far ahead of
  // the network.
  bool may_send(std::size_t index) const {
    if (index >= messages_ || index >= processed_ + window_) return false;
    if (index >= chunks_.chunks + processed_) return false;
    return index < window_ || freed_ > index - window_;
  }

  void send_ready() {
    while (freed_ < sent_ && sends_[freed_ % window_].closed()) ++freed_;
    for (; may_send(sent_); ++sent_) {
      const std::size_t at = sent_ % window_;
      outgoing_[at] = {.peer = neighbour(1), .payload = bytes_of(chunk(sent_, 1))};
      Batch& batch = sends_[at];
      initialize(batch, static_cast<std::uint32_t>(sent_));
      use_caller_memory(batch);
      batch.outgoing = {&outgoing_[at], 1};
      channel().post(batch);
      if (freed_ == sent_ && batch.closed()) ++freed_;
    }
  }

  void post_receive(std::size_t index) {
    const std::size_t at = index % window_;
    Incoming& incoming = incoming_[at];
    incoming.peer = neighbour(ranks_ - 1);
    incoming.min_bytes = incoming.capacity = chunk(index, 2).bytes();
    incoming.arrived.store(false, std::memory_order_relaxed);
    Batch& batch = receives_[at];
    initialize(batch, static_cast<std::uint32_t>(index));
    batch.incoming = {&incoming, 1};
    channel().post(batch);
  }

  // A complete part overwrites the values sent ranks - 1 steps earlier.
  bool process_next() {
    if (processed_ == messages_ || !receives_[processed_ % window_].closed()) return false;
    const std::size_t copied_from = messages_ / 2;
    if (processed_ >= copied_from && freed_ <= processed_ - copied_from) return false;
    Incoming& incoming = incoming_[processed_ % window_];
    const ValueSpan values = chunk(processed_, 2);
    if (processed_ >= copied_from)
      copy_values(values, incoming.payload.bytes());
    else
      work_.combine(values.pointer(), incoming.payload.bytes().data(), values.dtype(),
                    values.count());
    incoming.payload = {};
    ++processed_;
    if (processed_ + window_ <= messages_) post_receive(processed_ + window_ - 1);
    return true;
  }

  const RingWork work_;
  RingChunks chunks_;
  int ranks_;
  std::size_t messages_;  // number of messages each rank sends and receives
  std::size_t window_;
  std::size_t sent_ = 0;
  std::size_t freed_ = 0;  // number of sent messages whose memory may be overwritten
  std::size_t processed_ = 0;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<Batch> sends_;
  std::vector<Batch> receives_;
};

/// Receives all values of all ranks and combines them locally, in the order of the ring.
class Direct final : public HostExchange {
 public:
  Direct(const Start& start, RingWork work)
      : HostExchange(start, work.parts.size() - 1), work_(std::move(work)) {
    const std::size_t bytes = bytes_of_all(work_.parts);
    own_ = channel().engine().pools().host().take(bytes);
    copy_parts(work_.parts, own_.writable().data());
    add_all(own_.bytes(), bytes, bytes);
    for (Outgoing& message : outgoing()) message.block = own_;
  }

  bool step() override {
    if (!HostExchange::step()) return false;
    std::size_t offset = 0;
    for (std::size_t part = 0; part < work_.parts.size(); offset += work_.parts[part++].bytes())
      combine_part(part, offset);
    return true;
  }

 private:
  void combine_part(std::size_t part, std::size_t offset) {
    const ValueSpan values = work_.parts[part];
    for (std::size_t distance = 1; distance <= work_.parts.size(); ++distance) {
      const auto rank = static_cast<int>((part + distance) % work_.parts.size());
      const ConstByteSpan all = rank == channel().rank() ? own_.bytes() : payload_of(rank);
      const ConstByteSpan theirs = all.subspan(offset, values.bytes());
      if (distance == 1)
        copy_values(values, theirs);
      else
        work_.combine(values.pointer(), theirs.data(), values.dtype(), values.count());
    }
  }

  const RingWork work_;
  Block own_;  // local values, part after part
};

/// The first byte of all non-empty parts if the parts are contiguous; otherwise null.
std::byte* contiguous_begin(std::span<const ValueSpan> parts) {
  std::byte *begin = nullptr, *end = nullptr;
  for (const ValueSpan& part : parts) {
    if (part.empty()) continue;
    if (end != nullptr && end != part.pointer()) return nullptr;
    if (begin == nullptr) begin = part.pointer();
    end = part.pointer() + part.bytes();
  }
  return begin;
}

/// Sums short inputs with step lists (steps.h). All algorithms and all ranks return the same bits.
class SmallSum final : public StepTransfer {
 public:
  SmallSum(const Start& start, RingWork work, HostSteps steps)
      : StepTransfer(start, std::move(steps), dtype_bytes(start.envelope.dtype)),
        work_(std::move(work)) {}

  void begin() override {
    if (std::byte* const begin = contiguous_begin(work_.parts); begin != nullptr) {
      use_items(begin);
    } else {
      allocate_items(envelope().count);
      copy_parts(work_.parts, at(0));
    }
    StepTransfer::begin();
  }

 private:
  // The lower rank's values are the first operand on both ranks: of two NaNs, the first is the
  // result.
  void combine(const HostStep& step, Block received) override {
    std::byte* const own = at(step.received.first);
    std::byte* const theirs = received.writable().data();
    const Dtype dtype = envelope().dtype;
    if (step.from > channel().rank()) return work_.combine(own, theirs, dtype, step.received.count);
    work_.combine(theirs, own, dtype, step.received.count);
    std::memcpy(own, theirs, received.bytes().size());
  }

  void finish() override {
    if (!owns_items()) return;
    const std::byte* next = at(0);
    for (const ValueSpan& part : work_.parts) {
      copy_values(part, {next, part.bytes()});
      next += part.bytes();
    }
  }

  const RingWork work_;
};

bool is_exact(Dtype dtype) {
  return dtype == Dtype::kI8 || dtype == Dtype::kI32 || dtype == Dtype::kU32;
}

// All parts of a collective use the same algorithm, so splitting a collective changes no bits.
SumAlgorithm algorithm_of(const Start& start, const RingWork& work) {
  const Channel& channel = *start.channel;
  const std::size_t bytes = bytes_of_all(work.parts);
  const std::size_t whole = is_exact(start.envelope.dtype) ? bytes : start.operation.whole_bytes;
  const auto algorithm = [&](std::size_t of) {
    return sum_algorithm(channel.ranks(), channel.one_host(), of);
  };
  if (whole != 0 && algorithm(whole) != SumAlgorithm::kRing) return algorithm(bytes);
  return bytes <= SumTuning::kMaxDirectBytes ? SumAlgorithm::kDirect : SumAlgorithm::kRing;
}

}  // namespace

RingChunks::RingChunks(std::span<const ValueSpan> parts, Dtype dtype) {
  std::size_t longest = 0;
  for (const ValueSpan& part : parts) longest = std::max(longest, part.count());
  const std::size_t value_bytes = dtype_bytes(dtype);
  chunk_count = std::clamp(ceil_div(longest, RingTuning::kChunksPerPart),
                           RingTuning::kMinChunkBytes / value_bytes,
                           RingTuning::kMaxChunkBytes / value_bytes);
  chunks = std::max<std::size_t>(1, ceil_div(longest, chunk_count));
}

ValueSpan RingChunks::of(ValueSpan part, std::size_t chunk) const {
  const std::size_t first = std::min(part.count(), chunk * chunk_count);
  return part.subspan(first, std::min(chunk_count, part.count() - first));
}

std::unique_ptr<HostTransfer> make_reduction(const Start& start, RingWork work) {
  const SumAlgorithm algorithm = algorithm_of(start, work);
  if (algorithm == SumAlgorithm::kDirect) return std::make_unique<Direct>(start, std::move(work));
  if (algorithm == SumAlgorithm::kRing) return std::make_unique<Ring>(start, std::move(work));
  const Channel& channel = *start.channel;
  return std::make_unique<SmallSum>(
      start, std::move(work),
      steps_of(algorithm, channel.rank(), channel.ranks(), start.envelope.count));
}

}  // namespace tersor::host
