// Implements thread_count.h.
#include "tests/faults/thread_count.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

namespace tersor::faults {
namespace {

constexpr std::chrono::seconds kTimeout{10};

std::ptrdiff_t listed_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

}  // namespace

// ThreadSanitizer starts an additional thread with the program's first thread.
std::ptrdiff_t count_threads() {
  std::thread([] {}).join();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return listed_threads();
}

// Joined threads leave the kernel's list with a delay.
std::ptrdiff_t threads_left(std::ptrdiff_t before) {
  const auto until = std::chrono::steady_clock::now() + kTimeout;
  while (listed_threads() > before && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return std::max<std::ptrdiff_t>(0, listed_threads() - before);
}

}  // namespace tersor::faults
