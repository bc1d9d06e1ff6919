#include "comm/collectives/pipeline.h"

#include <algorithm>
#include <utility>

namespace tersor {
namespace {

// Maximum time without polling the other transports.
constexpr std::chrono::microseconds kSplitPollInterval{50};

}  // namespace

Pipeline::Pipeline(ExchangeContext& context) : context_(context) {
  for (unsigned i = 0; i < kWindow; ++i) {
    tasks_.push_back(std::make_unique<ChunkTask>());
    free_.push_back(tasks_.back().get());
  }
  active_.reserve(kWindow);
}

// Chunks take tasks from the end of the list.
void Pipeline::prepare(const ChunkPlan& chunk, std::size_t window) {
  const std::size_t first = free_.size() - std::min(free_.size(), window);
  for (std::size_t i = first; i < free_.size(); ++i) free_[i]->prepare(*context_.transport, chunk);
}

void Pipeline::submit(const ChunkPlan& chunk, std::function<void()> on_done) {
  const auto steps = static_cast<std::uint32_t>(chunk.schedule->size());
  if (!last_has_successor_) tag_ = context_.transport->reserve_tags(steps);
  last_has_successor_ = chunk.has_successor;
  queue_.push_back({&chunk, tag_, std::move(on_done)});
}

void Pipeline::activate_next() {
  QueuedChunk entry = std::move(queue_.front());
  queue_.pop_front();
  active_.push_back({free_.back(), std::move(entry.on_done)});
  free_.pop_back();
  active_.back().task->start(context_, *entry.chunk, entry.tag);
}

bool Pipeline::start_next() {
  if (queue_.empty() || free_.empty()) return false;
  activate_next();
  advance_task(active_.size() - 1);
  return true;
}

// Starts with the newest chunk: the next message is sent while older chunks wait for messages.
void Pipeline::tick() {
  if (!queue_.empty() && !free_.empty()) activate_next();
  for (std::size_t i = active_.size(); i-- > 0;) active_[i].task->tick();
  while (!active_.empty() && active_.front().task->done()) retire(0);
}

void Pipeline::advance_task(std::size_t index) {
  active_[index].task->advance();
  if (active_[index].task->done()) return retire(index);
  update_wire_clock();
}

void Pipeline::retire(std::size_t index) {
  ActiveChunk finished = std::move(active_[index]);
  active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));
  free_.push_back(finished.task);
  update_wire_clock();
  if (finished.on_done) finished.on_done();
}

// If splits differ, the first chunk detects the mismatch before any decoding.
bool Pipeline::may_advance(std::size_t index) const {
  return index == 0 || !active_[index - 1].task->has_successor();
}

bool Pipeline::advance_where(bool only_decodes) {
  for (std::size_t i = 0; i < active_.size(); ++i) {
    if (active_[i].task->only_decodes() != only_decodes || !may_advance(i) ||
        !active_[i].task->can_advance())
      continue;
    advance_task(i);
    return true;
  }
  return false;
}

// Work feeding the network goes first: sums to gather, then new chunks. Decoding goes last.
bool Pipeline::advance() {
  if (!ticks()) return advance_where(false) || start_next() || advance_where(true);
  if (queue_.empty()) return false;
  tick();
  return true;
}

// A transport waits only for its own messages. If messages are under way on a split, waits on the
// split, and polls the other transports soon after.
void Pipeline::wait_activity(Clock::time_point until) {
  for (const ActiveChunk& active : active_) {
    Transport& transport = active.task->transport();
    if (!active.task->on_wire() || &transport == context_.transport) continue;
    return transport.wait_activity(std::min(until, Clock::now() + kSplitPollInterval));
  }
  context_.transport->wait_activity(until);
}

void Pipeline::finish() {
  try {
    while (!idle() && ticks()) tick();
    while (!idle()) {
      if (advance()) continue;
      // Handles have deadlines: `can_advance` throws after a deadline
      wait_activity(Clock::now() + kMaxWait);
    }
  } catch (...) {
    drop();
    throw;
  }
}

void Pipeline::drop() {
  queue_.clear();
  last_has_successor_ = false;
  for (const ActiveChunk& active : active_) {
    active.task->drop();
    free_.push_back(active.task);
  }
  active_.clear();
  update_wire_clock();
}

void Pipeline::update_wire_clock() {
  bool busy = false;
  if (ticks()) return;
  for (const ActiveChunk& active : active_) busy |= active.task->on_wire();
  if (busy == wire_busy_) return;
  if (busy) {
    wire_since_ = Clock::now();
  } else {
    wire_seconds_ += seconds_since(wire_since_);
    if (context_.trace != nullptr && !context_.on_device())
      context_.trace->record(
          {TraceType::kWire, context_.step_on_host(), 0, wire_since_, Clock::now()});
  }
  wire_busy_ = busy;
}

double Pipeline::wire_seconds() const {
  return wire_seconds_ + (wire_busy_ ? seconds_since(wire_since_) : 0.0);
}

}  // namespace tersor
