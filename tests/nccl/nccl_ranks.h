// Ranks as threads, each with a transport over the NCCL replacement, a device and a stream.
#pragma once

#include "tests/nccl/watched_nccl.h"
#include "tests/ptx_device/hooks.h"
#include "tests/support/errors.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tersor/buffer.h>
#include <tersor/nccl.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "tests/transport/ranks.h"

namespace tersor::test {

/// The arguments of a rank's body.
struct NcclRank {
  Transport& transport;
  StreamView stream;
  ncclComm_t communicator;
  std::barrier<>& meeting;

  int rank() const { return transport.rank(); }
  int ranks() const { return transport.ranks(); }
  /// Waits until the threads of all ranks arrive or have ended. Does not wait for the devices.
  void meet() const { meeting.arrive_and_wait(); }
  Operation operation(std::string_view name = "test", std::uint64_t signature = 42) const {
    return {.name = name,
            .signature = signature,
            .timeout = std::chrono::seconds(60),
            .memory = Memory::kDevice,
            .stream = stream};
  }
};

using NcclBody = std::function<void(NcclRank&)>;

/// Device memory filled from the host in stream order. The host copy lives equally long.
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

/// The contents of device memory after the stream's queued work.
template <typename T = std::byte>
std::vector<T> fetch(ConstByteSpan device, StreamView stream) {
  const kernels::PinnedBuffer host(std::max<std::size_t>(device.size(), 1));
  kernels::copy_bytes(host.pointer(), device.data(), device.size(), stream);
  kernels::synchronize(stream);
  std::vector<T> values(device.size() / sizeof(T));
  std::memcpy(values.data(), host.pointer(), device.size());
  return values;
}

inline void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw CudaError(cudaGetErrorString(status));
}

/// The work queued by `body` on the rank's stream, as a graph. All ranks capture at the same time,
/// because a capture forbids waits and allocations in every thread, including the transports'
/// threads.
class Graph {
 public:
  /// Throws CudaError if the capture was broken.
  Graph(const NcclRank& rank, const std::function<void()>& body) {
    const auto stream = static_cast<cudaStream_t>(rank.stream.handle);
    rank.meet();
    cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    rank.meet();
    std::exception_ptr thrown;
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
    rank.meet();
    if (status == cudaSuccess) status = cudaStreamEndCapture(stream, &graph_);
    rank.meet();
    if (thrown != nullptr) std::rethrow_exception(thrown);
    if (status == cudaSuccess) status = cudaGraphInstantiate(&executable_, graph_, 0);
    check_cuda(status);
  }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay(StreamView stream) const {
    check_cuda(cudaGraphLaunch(executable_, static_cast<cudaStream_t>(stream.handle)));
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// Number of runtime calls with allocations or host waits so far, on all ranks.
inline std::size_t calls_that_allocate_or_wait() {
  std::size_t calls = 0;
  for (const char* function :
       {"cudaMalloc", "cudaMallocManaged", "cudaMallocAsync", "cudaHostAlloc", "cudaMallocHost",
        "cudaFree", "cudaFreeAsync", "cudaFreeHost", "cudaStreamSynchronize",
        "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaMemset"})
    calls += ptx_device_calls(function);
  return calls;
}

/// Expects no such call while the bodies of all ranks run together.
inline void expect_no_wait(const NcclRank& rank, const std::function<void()>& body) {
  rank.meet();
  const std::size_t before = calls_that_allocate_or_wait();
  rank.meet();
  body();
  rank.meet();
  EXPECT_EQ(calls_that_allocate_or_wait(), before);
  rank.meet();
}

/// The fault found by the transport's thread while the device continues.
inline std::string wait_for_fault(Transport& transport) {
  const auto until = Clock::now() + std::chrono::seconds(60);
  while (Clock::now() < until) {
    kernels::sleep_between_polls();
    const std::string found = error_of<Error>([&] { transport.progress(); });
    if (!found.empty()) return found;
  }
  return "";
}

/// Sums a few values. The memory lives until the stream has passed the sum.
inline void sum_up(NcclRank& rank, const Operation& operation) {
  DeviceBytes values(400);
  values.fill(std::vector<float>(100, 1.0f), rank.stream);
  std::vector<ValueSpan> parts(static_cast<std::size_t>(rank.ranks()));
  parts[0] = values.values();
  rank.transport.sum(operation, parts).wait_synchronize();
  kernels::synchronize(rank.stream);
}

/// The end of each rank's thread.
struct NcclRun {
  std::vector<std::string> errors;  ///< of each rank, or empty
};

enum class Whose { kCallers, kOwn };

/// Runs the body on `ranks` ranks. Transports live until all bodies have ended.
inline NcclRun run_nccl(WatchedNccl& nccl, int ranks, const NcclBody& body,
                        Whose whose = Whose::kCallers) {
  const std::vector<ncclComm_t> clique = nccl.make_clique(ranks);
  NcclRun run{std::vector<std::string>(clique.size())};
  std::barrier<> meeting(ranks);
  std::atomic<int> running{ranks};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < clique.size(); ++i)
    threads.emplace_back([&, i] {
      std::unique_ptr<Stream> stream;
      std::unique_ptr<Transport> transport;
      try {
        kernels::use_device(static_cast<int>(i));
        stream = std::make_unique<Stream>();
        if (whose == Whose::kCallers)
          transport = make_nccl_transport(clique[i]);
        else
          transport = make_nccl_transport(NcclCommunicator(clique[i]));
        NcclRank rank{*transport, stream->view(), clique[i], meeting};
        body(rank);
        stream->synchronize();
      } catch (const std::exception& error) {
        run.errors[i] = error.what();
      }
      meeting.arrive_and_drop();
      --running;
      while (running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  for (std::thread& thread : threads) thread.join();
  return run;
}

/// Like run_nccl, but expects no errors and no leaks.
inline void on_nccl(int ranks, const NcclBody& body) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, ranks, body, Whose::kOwn);
  for (const std::string& error : run.errors) EXPECT_EQ(error, "");
  EXPECT_THAT(nccl.misuses(), ::testing::IsEmpty());
  EXPECT_EQ(nccl.open_communicators(), 0);
  EXPECT_EQ(nccl.open_registrations(), 0);
}

/// Calls the body `seeds` times with different pauses of streams. Stops at the first failure and
/// names its seed. The first seed is TERSOR_STREAM_SEED from the environment, or 1.
inline void for_each_order(std::uint64_t seeds, const std::function<void()>& body) {
  const char* asked = std::getenv("TERSOR_STREAM_SEED");
  const std::uint64_t first = asked == nullptr ? 1 : std::strtoull(asked, nullptr, 10);
  for (std::uint64_t i = 0; i < seeds && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("TERSOR_STREAM_SEED=" + std::to_string(first + i));
    ptx_device_pauses(1, first + i);
    body();
  }
  ptx_device_pauses(0, first);
}

/// Runs the body on 1, 2, 3, 4 and 8 ranks, each with several device orders.
inline void on_all_nccl_ranks(const NcclBody& body) {
  for (const int ranks : {1, 2, 3, 4, 8})
    for_each_order(3, [&] {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks");
      on_nccl(ranks, body);
    });
}

}  // namespace tersor::test
