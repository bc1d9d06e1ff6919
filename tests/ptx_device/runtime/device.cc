// See device.h.
#include "tests/ptx_device/runtime/device.h"

#include "tests/ptx_device/runtime/pauses.h"

#include <optional>

namespace ptx {
namespace {

std::atomic<std::uint64_t> stream_count{0};

/// The amount of queued work per device.
struct Pending {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::size_t> count;

  void add(int device) {
    const std::lock_guard lock(mutex);
    ++count[device];
  }
  void remove(int device) {
    const std::lock_guard lock(mutex);
    if (--count[device] == 0) changed.notify_all();
  }
};
Pending& pending() {
  static auto* pending = new Pending;
  return *pending;
}

}  // namespace

void wait_for_device(int device) {
  std::unique_lock lock(pending().mutex);
  pending().changed.wait(lock, [&] { return pending().count[device] == 0; });
}

std::recursive_mutex& capture_mutex() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

void Mark::pass() {
  const std::lock_guard lock(mutex_);
  time_ = std::chrono::steady_clock::now();
  passed_ = true;
  changed_.notify_all();
}

void Mark::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return passed_.load(); });
}

void Graph::run(std::uint64_t random) const {
  std::vector<std::size_t> left(nodes.size()), ready;
  std::vector<std::vector<std::size_t>> behind(nodes.size());
  std::optional<std::size_t> last_that_waits;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::vector<std::size_t> all_before = nodes[i].before;
    if (nodes[i].waits && last_that_waits) all_before.push_back(*last_that_waits);
    if (nodes[i].waits) last_that_waits = i;
    left[i] = all_before.size();
    for (std::size_t before : all_before) behind[before].push_back(i);
    if (left[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const auto next = ready.begin() + static_cast<std::ptrdiff_t>((random >> 33) % ready.size());
    const std::size_t index = *next;
    ready.erase(next);
    nodes[index].work();
    for (std::size_t other : behind[index])
      if (--left[other] == 0) ready.push_back(other);
  }
}

Stream::Stream(int device_of, bool blocks_on_default)
    : device(device_of),
      blocks(blocks_on_default),
      number(++stream_count),
      random_(order_seed() * 0x9e3779b97f4a7c15u + number) {}

void Stream::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  if (!started_) {
    lock.unlock();
    delete this;
  }
}

void Stream::add(std::function<void()> work, bool waits) {
  {
    const std::lock_guard lock(capture_mutex());
    if (capture != nullptr) {
      capture->graph->nodes.push_back({std::move(work), frontier, waits});
      frontier = {capture->graph->nodes.size() - 1};
      return;
    }
  }
  pending().add(device);
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  if (!started_) {
    started_ = true;
    std::thread([this] { loop(); }).detach();
  }
  changed_.notify_all();
}

void Stream::wait_for(std::shared_ptr<Mark> mark) {
  if (!mark->passed()) add([mark = std::move(mark)] { mark->wait(); });
}

std::shared_ptr<Mark> Stream::mark() {
  auto mark = std::make_shared<Mark>();
  add([mark] { mark->pass(); });
  return mark;
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return work_.empty() && !busy_; });
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return work_.empty() && !busy_;
}

void Stream::loop() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !work_.empty() || closed_; });
      if (work_.empty()) break;
      work = std::move(work_.front());
      work_.pop_front();
      busy_ = true;
    }
    if (streams_pause()) {
      random_ = random_ * 6364136223846793005u + 1442695040888963407u;
      if ((random_ >> 40) % 4 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds((random_ >> 33) % 2000));
    }
    work();
    work = nullptr;
    {
      const std::lock_guard lock(mutex_);
      busy_ = false;
      if (work_.empty()) idle_.notify_all();
    }
    pending().remove(device);
  }
  delete this;
}

}  // namespace ptx
