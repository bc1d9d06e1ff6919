// Queues of emulated streams and the execution order of their work; see streams.h.

#include "tests/emulated/schedule.h"

#include "tests/emulated/arena.h"

#include <tersor/error.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <random>

namespace tersor::emulator {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPatience{10'000};
constexpr unsigned kWorksAtOnce = 16;

std::uint64_t first_seed() {
  const char* text = std::getenv("TERSOR_STREAM_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

struct Schedule {
  std::condition_variable_any changed;
  std::vector<std::unique_ptr<StreamState>> streams;
  StreamState* favourite = nullptr;  // stream of the last executed work
  std::uint64_t seed = first_seed();
  std::mt19937_64 random{seed};
  std::chrono::milliseconds patience = kPatience;
  Clock::time_point last_change{};  // time of the last execution or queueing
  std::string failure;              // empty: none
  bool working = false;
  std::uint64_t named = 0;  // number of streams without a given name
  bool recording = false;
  std::vector<std::string> record;
  Counters of_all;
};

Schedule& schedule() {
  static Schedule all;
  return all;
}

void note_change() {
  schedule().last_change = Clock::now();
  schedule().changed.notify_all();
}

bool is_drawn(unsigned one_of) { return schedule().random() % one_of == 0; }

std::string seed_text() { return " (stream seed " + std::to_string(schedule().seed) + ")"; }

void mark_reached(const Work& work) {
  if (work.reaches != nullptr) work.reaches->reached = true;
}

void drop_work() {
  for (const auto& stream : schedule().streams) {
    std::ranges::for_each(stream->works, mark_reached);
    stream->done += stream->works.size();
    stream->works.clear();
  }
}

/// Drops all queued work. Every later wait reports the failure.
void fail_all(const std::string& what) {
  schedule().failure = what + seed_text();
  drop_work();
  note_change();
}

void throw_failure() {
  if (!schedule().failure.empty()) throw EmulatorError(schedule().failure);
}

bool is_ready(const Work& work) {
  return (work.waits_for == nullptr || work.waits_for->reached) && (!work.ready || work.ready());
}

bool is_runnable(const StreamState& stream) {
  return !stream.works.empty() && is_ready(stream.works.front());
}

std::string describe_next(const StreamState& stream) {
  const Work& next = stream.works.front();
  std::string text = "\n  " + stream.name + ": " + next.what;
  if (next.waits_for != nullptr) text += " of " + next.waits_for->stream;
  return text + ", and " + std::to_string(stream.works.size() - 1) + " more behind it";
}

void fail_stuck() {
  std::string text = "streams are stuck:";
  for (const auto& stream : schedule().streams)
    if (!stream->works.empty()) text += describe_next(*stream);
  fail_all(text);
}

/// Often chooses the stream of the last work, so a stream may get far ahead of the others.
StreamState& choose(const std::vector<StreamState*>& runnable) {
  const auto found = std::ranges::find(runnable, schedule().favourite);
  if (found != runnable.end() && !is_drawn(4)) return **found;
  return *(schedule().favourite = runnable[schedule().random() % runnable.size()]);
}

void remove_if_over(StreamState& stream) {
  if (stream.is_owned || !stream.works.empty()) return;
  if (schedule().favourite == &stream) schedule().favourite = nullptr;
  std::erase_if(schedule().streams, [&](const auto& other) { return other.get() == &stream; });
}

void run(const Work& work) {
  if (!work.run) return;
  const ArenaAccess access;
  work.run();
}

void run_next(StreamState& stream) {
  const Work work = std::move(stream.works.front());
  stream.works.pop_front();
  schedule().working = true;
  try {
    run(work);
  } catch (const std::exception& error) {
    fail_all(stream.name + ", " + work.what + ": " + error.what());
  }
  schedule().working = false;
  mark_reached(work);
  ++stream.done;
  remove_if_over(stream);
  note_change();
}

/// Runs work until no work is left or ends() returns true, for a limited number of works. Returns
/// false if no work ran. Opening the arena once for several works is faster than once per work.
bool run_several(const std::function<bool()>& ends) {
  const ArenaAccess access;
  unsigned works = 0;
  while (works < kWorksAtOnce && !ends() && run_one()) ++works;
  return works != 0;
}

bool ends_by_chance() { return is_drawn(4); }

void keep_record(const std::string& stream, const Work& work) {
  if (schedule().recording) schedule().record.push_back(stream + ": " + work.what);
}

}  // namespace

Guard lock_device() {
  static std::recursive_mutex mutex;
  return Guard(mutex);
}

StreamState& add_stream(std::string name, int device) {
  const Guard guard = lock_device();
  auto stream = std::make_unique<StreamState>();
  if (name.empty()) name = "stream " + std::to_string(++schedule().named);
  stream->name = std::move(name);
  stream->device = device;
  return *schedule().streams.emplace_back(std::move(stream));
}

void release_stream(StreamState& stream) {
  const Guard guard = lock_device();
  if (Capture* capture = capture_of(stream)) capture->broken = "a stream of it is gone";
  stream.capture = 0;
  stream.is_owned = false;
  remove_if_over(stream);
}

StreamState& state_of(StreamView view) {
  for (const auto& stream : schedule().streams)
    if (stream.get() == view.handle) return *stream;
  throw EmulatorError("a stream is used that is none, or is gone");
}

void queue_work(StreamState& stream, Work work) {
  keep_record(stream.name, work);
  if (Capture* capture = capture_of(stream)) {
    lane_of(*capture, stream).works.push_back(std::move(work));
    return;
  }
  ++stream.queued;
  stream.works.push_back(std::move(work));
  if (!schedule().failure.empty()) drop_work();
  note_change();
  if (is_drawn(8)) run_several(ends_by_chance);
}

void queue_work(StreamView view, Work work) {
  Guard guard = lock_device();
  if (view.handle != nullptr) return queue_work(state_of(view), std::move(work));
  keep_record("default stream", work);
  if (!is_ready(work)) run_until(guard, [&] { return is_ready(work); });
  run(work);
  mark_reached(work);
}

void enqueue(StreamView stream, std::string what, std::function<void()> work) {
  queue_work(stream, Work{.what = std::move(what), .run = std::move(work)});
}

void enqueue_when(StreamView stream, std::string what, std::function<bool()> ready,
                  std::function<void()> work) {
  queue_work(stream,
             Work{.what = std::move(what), .ready = std::move(ready), .run = std::move(work)});
}

void launch(StreamView stream, std::string what, std::function<void()> work) {
  count(&Counters::launches);
  enqueue(stream, std::move(what), std::move(work));
}

bool run_one() {
  const Guard guard = lock_device();
  if (schedule().working) return false;
  std::vector<StreamState*> runnable;
  for (const auto& stream : schedule().streams)
    if (is_runnable(*stream)) runnable.push_back(stream.get());
  if (runnable.empty()) return false;
  run_next(choose(runnable));
  return true;
}

void drain(Guard& guard) noexcept try {
  run_until(guard, [] {
    return std::ranges::none_of(schedule().streams, [](const auto& stream) {
      return stream->thread == std::this_thread::get_id() && !stream->works.empty();
    });
  });
} catch (const std::exception&) {
  // The next waiting call reports the failure.
}

void run_until(Guard& guard, const std::function<bool()>& finished) {
  if (schedule().working) throw EmulatorError("work that runs must not wait");
  const Clock::time_point start = Clock::now();
  for (throw_failure(); !finished(); throw_failure()) {
    if (run_several(finished)) {
      guard.unlock();  // lets other threads queue work
      std::this_thread::yield();
      guard.lock();
    } else if (Clock::now() - std::max(start, schedule().last_change) > schedule().patience) {
      fail_stuck();
    } else {
      schedule().changed.wait_for(guard, std::chrono::milliseconds(1));
    }
  }
}

void synchronize(StreamView view) {
  Guard guard = lock_device();
  forbid_in_capture("waiting for a stream");
  count(&Counters::host_waits);
  throw_failure();
  if (view.handle == nullptr) return;
  if (state_of(view).capture != 0) throw CudaError("waiting for a stream that is captured");
  const std::uint64_t queued = state_of(view).queued;
  run_until(guard, [&] { return state_of(view).done >= queued; });
}

bool is_drained(StreamView view) {
  const Guard guard = lock_device();
  return view.handle == nullptr || state_of(view).works.empty();
}

void name_stream(StreamView view, std::string name) {
  const Guard guard = lock_device();
  state_of(view).name = std::move(name);
}

void restart(std::uint64_t seed) {
  const Guard guard = lock_device();
  drop_work();
  drop_captures();
  std::erase_if(schedule().streams, [](const auto& stream) { return !stream->is_owned; });
  schedule().failure.clear();
  schedule().random.seed(schedule().seed = seed);
}

std::uint64_t seed() {
  const Guard guard = lock_device();
  return schedule().seed;
}

void set_patience(std::chrono::milliseconds patience) {
  const Guard guard = lock_device();
  schedule().patience = patience;
}

std::vector<std::byte> bytes_of(const void* memory, std::size_t bytes) {
  const Guard guard = lock_device();
  const ArenaAccess access;
  const auto* begin = static_cast<const std::byte*>(memory);
  return {begin, begin + bytes};
}

Counters& counters() {
  static thread_local Counters of_thread;
  return of_thread;
}

Counters all_counters() {
  const Guard guard = lock_device();
  return schedule().of_all;
}

void count(std::uint64_t Counters::*counter) {
  const Guard guard = lock_device();
  ++(counters().*counter);
  ++(schedule().of_all.*counter);
}

MilestonePointer record(StreamView view) {
  const Guard guard = lock_device();
  auto milestone = std::make_shared<Milestone>();
  if (view.handle != nullptr) {
    milestone->stream = state_of(view).name;
    milestone->capture = state_of(view).capture;
  }
  queue_work(view, Work{.what = "record of an event", .reaches = milestone});
  return milestone;
}

void record(StreamView view, EventState& event) {
  const Guard guard = lock_device();
  if (view.handle != nullptr && state_of(view).device != event.device)
    throw CudaError("recording an event of another device");
  event.last = record(view);
}

bool is_done(const EventState& event) {
  const Guard guard = lock_device();
  forbid_in_capture("asking for an event");
  if (event.last != nullptr && event.last->capture != 0)
    throw CudaError("asking for an event that a capture recorded");
  run_several(ends_by_chance);
  throw_failure();
  return event.last == nullptr || event.last->reached;
}

Record::Record() {
  const Guard guard = lock_device();
  if (schedule().recording) throw std::logic_error("two records at a time");
  schedule().recording = true;
  schedule().record.clear();
}

Record::~Record() {
  const Guard guard = lock_device();
  schedule().recording = false;
}

std::vector<std::string> Record::lines() const {
  const Guard guard = lock_device();
  return schedule().record;
}

}  // namespace tersor::emulator
