// Ranks that are threads, each with a transport over the stand-in of NCCL and a stream of its own.
#pragma once

#include "tests/emulated/emulator.h"
#include "tests/emulated/ranks.h"
#include "tests/emulated/streams.h"
#include "tests/nccl/fake_nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tersor/buffer.h>
#include <tersor/nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/common/device.h"
#include "kernels/common/device_memory.h"
#include "tests/transport/ranks.h"

namespace tersor::test {

/// What a body sees of its rank.
struct NcclRank {
  Transport& transport;
  StreamView stream;
  ncclComm_t communicator;

  int rank() const { return transport.rank(); }
  int ranks() const { return transport.ranks(); }
  Operation operation(std::string_view name = "test", std::uint64_t signature = 42) const {
    return {.name = name,
            .signature = signature,
            .timeout = std::chrono::seconds(20),
            .memory = Memory::kDevice,
            .stream = stream};
  }
};

using NcclBody = std::function<void(NcclRank&)>;

/// Device memory filled from the host in the stream's order; the host's copy lives as long.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes)
      : host_(std::max<std::size_t>(bytes, 1)),
        device_(std::max<std::size_t>(bytes, 1), Memory::kDevice),
        bytes_(bytes) {}

  template <typename T>
  void fill(const std::vector<T>& values, StreamView stream) {
    std::memcpy(host_.pointer(), values.data(), bytes_);
    kernels::copy_bytes(device_.pointer(), host_.pointer(), bytes_, stream);
  }
  ByteSpan span() const { return {device_.pointer(), bytes_}; }
  ValueSpan values(Dtype dtype = Dtype::kF32) const {
    return {device_.pointer(), bytes_ / dtype_bytes(dtype), dtype, Memory::kDevice};
  }

 private:
  kernels::PinnedBuffer host_;
  Buffer device_;
  std::size_t bytes_;
};

/// What lies in device memory once the stream has come here.
template <typename T = std::byte>
std::vector<T> fetch(ConstByteSpan device, StreamView stream) {
  const kernels::PinnedBuffer host(std::max<std::size_t>(device.size(), 1));
  kernels::copy_bytes(host.pointer(), device.data(), device.size(), stream);
  emulator::synchronize(stream);
  std::vector<T> values(device.size() / sizeof(T));
  std::memcpy(values.data(), host.pointer(), device.size());
  return values;
}

constexpr const char* kNothing = "nothing was thrown";

template <typename Exception>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return kNothing;
}

/// What the transport's thread finds while the device goes on.
inline std::string wait_for_fault(Transport& transport) {
  const auto until = Clock::now() + std::chrono::seconds(20);
  while (Clock::now() < until) {
    kernels::rest();
    const std::string found = message_of<Error>([&] { transport.progress(); });
    if (found != kNothing) return found;
  }
  return kNothing;
}

/// A sum of a few values; the memory lives until the stream has come past it.
inline void sum_up(NcclRank& rank, const Operation& operation) {
  DeviceBytes values(400);
  values.fill(std::vector<float>(100, 1.0f), rank.stream);
  std::vector<ValueSpan> parts(static_cast<std::size_t>(rank.ranks()));
  parts[0] = values.values();
  rank.transport.sum(operation, parts).wait_synchronize();
  emulator::synchronize(rank.stream);
}

/// A transport of a thread's, and how the thread ended.
struct NcclRun {
  std::vector<std::string> errors;  ///< of each rank; empty where it had none
};

enum class Whose { kCallers, kOwn };

/// Runs the body on so many ranks. Transports live until all bodies have ended.
inline NcclRun run_nccl(FakeNccl& nccl, int ranks, const NcclBody& body,
                        Whose whose = Whose::kCallers) {
  const std::vector<ncclComm_t> clique = nccl.make_clique(ranks);
  NcclRun run{std::vector<std::string>(clique.size())};
  std::atomic<int> running{ranks};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < clique.size(); ++i)
    threads.emplace_back([&, i] {
      const Stream stream;
      emulator::name_stream(stream.view(), "rank " + std::to_string(i));
      std::unique_ptr<Transport> transport;
      try {
        if (whose == Whose::kCallers)
          transport = std::make_unique<NcclTransport>(clique[i]);
        else
          transport = std::make_unique<NcclTransport>(NcclCommunicator(clique[i]));
        NcclRank rank{*transport, stream.view(), clique[i]};
        body(rank);
        stream.synchronize();
      } catch (const std::exception& error) {
        run.errors[i] = error.what();
      }
      --running;
      while (running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  for (std::thread& thread : threads) thread.join();
  return run;
}

/// The same, where nothing may go wrong and nothing stay behind.
inline void on_nccl(int ranks, const NcclBody& body) {
  FakeNccl nccl;
  const NcclRun run = run_nccl(nccl, ranks, body, Whose::kOwn);
  for (const std::string& error : run.errors) EXPECT_EQ(error, "");
  EXPECT_THAT(nccl.misuses(), ::testing::IsEmpty());
  EXPECT_EQ(nccl.open_communicators(), 0);
  EXPECT_EQ(nccl.open_registrations(), 0);
}

/// On 1, 2, 3, 4 and 8 ranks, each under some orders of the device.
inline void on_all_nccl_ranks(const NcclBody& body) {
  for (const int ranks : {1, 2, 3, 4, 8})
    emulator::for_each_order(3, [&] {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks");
      on_nccl(ranks, body);
    });
}

}  // namespace tersor::test
