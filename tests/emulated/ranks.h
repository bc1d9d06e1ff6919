// Helpers for tests on emulated streams: many seeds, and ranks as threads with a stream each.
#pragma once

#include "tests/emulated/streams.h"

#include <gtest/gtest.h>
#include <tersor/stream.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tersor::emulator {

/// Calls body() with `seeds` different orders, starting at the first seed (TERSOR_STREAM_SEED).
/// Stops at the first failure and names its seed.
inline void for_each_order(std::uint64_t seeds, const std::function<void()>& body) {
  const std::uint64_t first = seed();
  for (std::uint64_t i = 0; i < seeds && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("TERSOR_STREAM_SEED=" + std::to_string(first + i));
    restart(first + i);
    try {
      body();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  restart(first);
}

/// Runs `body(rank, stream)` on `ranks` threads, waits for the queued work, and rethrows the first
/// exception.
inline void run_on_streams(int ranks, const std::function<void(int rank, StreamView)>& body) {
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const Stream stream;
        name_stream(stream.view(), "rank " + std::to_string(rank));
        body(rank, stream.view());
        stream.synchronize();
      } catch (...) {
        const Guard guard = lock_device();
        if (failure == nullptr) failure = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace tersor::emulator
