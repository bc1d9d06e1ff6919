// The queues of the device: streams with a thread each, marks, captures and graphs. Other files
// implement CUDA's functions with these queues.
#pragma once

#include "tests/ptx_device/machine/machine.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace ptx {

/// A point in a stream. `passed` is true after the stream has reached the point.
class Mark {
 public:
  void pass();
  void wait();
  bool passed() const { return passed_; }
  std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> passed_{false};
  std::chrono::steady_clock::time_point time_;
};

struct Node {
  std::function<void()> work;
  std::vector<std::size_t> before;  // indices of nodes
  bool waits = false;  // True if the node waits for other processes; such nodes keep their order
};
struct Graph {
  std::vector<Node> nodes;
  /// Runs all nodes in an allowed order drawn from `random`.
  void run(std::uint64_t random) const;
};

class Stream;
struct Capture {
  std::uint64_t id = 0;
  int mode = 0;
  std::thread::id thread;
  Stream* origin = nullptr;
  bool is_broken = false;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::set<Stream*> streams;
};

class Stream {
 public:
  Stream(int device, bool blocks);
  /// Stops further queueing. Queued work is still executed.
  void close();

  void add(std::function<void()> work, bool waits = false);
  void wait_for(std::shared_ptr<Mark> mark);
  std::shared_ptr<Mark> mark();
  void synchronize();
  bool idle();

  const int device;
  const bool blocks;  // with respect to the legacy default stream
  const std::uint64_t number;
  Capture* capture = nullptr;         // under capture_mutex()
  std::vector<std::size_t> frontier;  // predecessors of the next captured node

 private:
  void loop();
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, started_ = false, closed_ = false;
  std::uint64_t random_;
};

std::recursive_mutex& capture_mutex();

/// Waits until no work is queued on a device.
void wait_for_device(int device);

}  // namespace ptx
