// Implements process.h.
#include "comm/transport/tcp/process.h"

#include <pthread.h>

#include <atomic>

namespace tersor::tcp {
namespace {

std::atomic<unsigned> forks{0};  // from the program's start to this process

void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

/// The count, which forks move on from the first call on.
unsigned counted_forks() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

Process::Process() : forks_(counted_forks()) {}

bool Process::is_this() const { return forks.load(std::memory_order_relaxed) == forks_; }

}  // namespace tersor::tcp
