#include "comm/transport/nccl/queue.h"

#include <tersor/error.h>

#include <chrono>

#include "kernels/device/device.h"

namespace tersor::nccl {
namespace {

/// The layout of the pinned memory, initially zero.
struct Words {
  kernels::ProgressWords progress;
  alignas(64) FrameFault frames;
  alignas(64) kernels::ProgressWords invalidated;
  alignas(64) std::byte warm_up[16];
};

/// The ticket of a relay before its signal is queued.
constexpr std::uint64_t kNoTicket = ~std::uint64_t{0};

constexpr auto kInvalidateTimeout = std::chrono::seconds(5);

}  // namespace

Queue::Queue(const Fault& fault) : fault_(fault), pinned_(sizeof(Words)) {
  auto* words = reinterpret_cast<Words*>(pinned_.pointer());
  words_ = &words->progress;
  frame_fault_ = &words->frames;
  invalidated_ = &words->invalidated;
  // CUDA loads a kernel at the first use and may wait for the device. Load the kernel now, not
  // while an exchange hangs.
  kernels::spoil(words->warm_up, invalidation_stream_.view());
}

Queue::~Queue() {
  const auto ended = [this] {
    const auto words = kernels::read_progress(*words_);
    return is_done() && words.begun == words.ended && words.signals == signals_;
  };
  try {
    if (!fault_.is_raised() || ended()) return;
  } catch (const std::exception&) {
    // the device does not answer
  }
  // Freeing memory waits for the whole device, and the device may wait for a lost rank. Leak the
  // memory.
  static_cast<void>(pool_.release());
  new std::vector<std::unique_ptr<StagingBuffers>>(std::move(staging_buffers_));
  new kernels::PinnedBuffer(std::move(pinned_));
}

void Queue::open(const Operation& operation, std::uint32_t name) {
  if (depth_ == 0) {
    if (has_ended_ && kernels::capture_of(operation.stream) == 0) last_.hold(operation.stream);
    kernels::mark_begun(words_, operation.timeout, name, operation.stream);
  }
  ++depth_;
}

void Queue::close(const Operation& operation) {
  if (depth_ == 0 || --depth_ != 0) return;
  kernels::mark_ended(words_, operation.stream);
  if (kernels::capture_of(operation.stream) != 0) return;
  last_.record(operation.stream);
  has_ended_ = true;
}

std::optional<std::string> Queue::find_frame_fault() const {
  if (__atomic_load_n(&frame_fault_->kind, __ATOMIC_ACQUIRE) == FrameFault::kNone)
    return std::nullopt;
  try {
    throw_if_faulty(*frame_fault_);
  } catch (const WireError& error) {
    return error.what();
  }
  return std::nullopt;
}

std::optional<std::string> Queue::observe_frame_fault() {
  auto fault_text = find_frame_fault();
  if (!fault_text.has_value()) return std::nullopt;
  const auto words = kernels::read_progress(*words_);
  if (!ended_at_fault_.has_value()) ended_at_fault_ = words.ended;
  if (words.ended == *ended_at_fault_ && words.begun != words.ended) return std::nullopt;
  return fault_text;
}

void Queue::invalidate() noexcept try {
  const std::uint64_t before = kernels::read_progress(*invalidated_).signals;
  pool_->invalidate(invalidation_stream_.view());
  kernels::mark_signal(invalidated_, invalidation_stream_.view());
  const auto until = Clock::now() + kInvalidateTimeout;
  while (kernels::read_progress(*invalidated_).signals == before && Clock::now() < until)
    kernels::sleep_between_polls();
} catch (const std::exception&) {
  // a failed device writes no results either
}

kernels::Event Queue::take_event() {
  if (events_.empty()) return {};
  kernels::Event event = std::move(events_.back());
  events_.pop_back();
  return event;
}

StagingBuffers& Queue::take_staging(std::size_t bytes) {
  for (const auto& staging : staging_buffers_)
    if (staging->free && staging->host.bytes() >= bytes && is_signalled(*staging)) {
      staging->free = false;
      staging->ticket = kNoTicket;
      return *staging;
    }
  staging_buffers_.push_back(std::make_unique<StagingBuffers>(StagingBuffers{
      kernels::PinnedBuffer(bytes), Buffer(bytes, Memory::kDevice), kNoTicket, false}));
  return *staging_buffers_.back();
}

void Queue::signal(StagingBuffers& staging) {
  kernels::mark_signal(words_, wire());
  staging.ticket = ++signals_;
}

bool Queue::is_signalled(const StagingBuffers& staging) const {
  return kernels::read_progress(*words_).signals >= staging.ticket;
}

std::optional<LateBracket> Queue::observe(Clock::time_point now) {
  const auto words = kernels::read_progress(*words_);
  if (words.begun == words.ended) {
    observation_.bracket = 0;
  } else if (words.begun != observation_.bracket) {
    observation_ = {words.begun, now};
  } else if (const std::chrono::milliseconds timeout(words.timeout_ms);
             now - observation_.since >= timeout) {
    return LateBracket{words.name, timeout};
  }
  return std::nullopt;
}

// Replays do not record the event. The end of a bracket still open on the host is not queued.
bool Queue::is_done() const {
  if (has_ended_ && !last_.done()) return false;
  const auto words = kernels::read_progress(*words_);
  return words.begun - words.ended <= (in_bracket() ? 1u : 0u);
}

void Queue::finish() const {
  while (!fault_.is_raised() && !is_done()) kernels::sleep_between_polls();
}

}  // namespace tersor::nccl
