// See baselines.h.

#include "bench/device/baselines.h"

#include <tersor/align.h>

#include <algorithm>

#include "bench/device/loops.h"
#include "bench/rotation.h"
#include "bench/timing.h"

namespace tersor::bench {
namespace {

constexpr double kBaselineSeconds = 3e-3;
constexpr double kWarmUpSeconds = 0.1;    // in which the clocks rise
constexpr std::size_t kMostCalls = 1000;  // of a sample: about as many as a queue holds
constexpr int kPattern = 0x5a;
constexpr std::size_t kHalfAlignment = 256;

/// Noise to copy and read, shared by the calls that hold it.
struct Arena {
  Arena(const Gpu& gpu, StreamView on, std::size_t bytes)
      : stream(cuda_stream(on)),
        half(align_up(bytes / 2, kHalfAlignment)),
        buffers(rotation_sets(gpu.cache_bytes, bytes), 2 * half),
        sink(sizeof(std::uint32_t), Memory::kDevice) {
    for (std::size_t set = 0; set < buffers.sets(); ++set)
      queue_noise(buffers.at(set).data(), buffers.bytes(), stream);
  }

  void copy() {
    const ByteSpan bytes = buffers.at(call++);
    check_cuda(
        cudaMemcpyAsync(bytes.data() + half, bytes.data(), half, cudaMemcpyDeviceToDevice, stream),
        "queueing a copy");
  }
  void read() {
    queue_read(buffers.at(call++).data(), buffers.bytes(),
               reinterpret_cast<std::uint32_t*>(sink.pointer()), stream);
  }
  void clear() {
    check_cuda(cudaMemsetAsync(buffers.at(call++).data(), kPattern, buffers.bytes(), stream),
               "queueing a memset");
  }

  cudaStream_t stream;
  std::size_t half;
  RotatedBuffer buffers;
  Buffer sink;
  std::size_t call = 0;
};

std::size_t calls_of(DeviceClock& clock, const TimedCall& call) {
  if (call.calls != 0) return call.calls;
  clock.seconds_per_call(call.queue, 1);
  const double seconds = std::max(clock.seconds_per_call(call.queue, 2), 1e-9);
  return std::min(calls_for(seconds, kBaselineSeconds), kMostCalls);
}

}  // namespace

std::vector<TimedCall> memory_baselines(const Gpu& gpu, StreamView stream, std::size_t bytes,
                                        WithMemset with_memset) {
  const auto arena = std::make_shared<Arena>(gpu, stream, bytes);
  std::vector<TimedCall> calls = {{"copy", [arena] { arena->copy(); }},
                                  {"read", [arena] { arena->read(); }}};
  if (with_memset == WithMemset::kYes) {
    const auto cleared = std::make_shared<Arena>(gpu, stream, bytes);  // leaves the noise alone
    calls.push_back({"memset", [cleared] { cleared->clear(); }});
  }
  return calls;
}

TimedCall empty_kernel(StreamView stream) {
  return {"empty kernel", [queue = cuda_stream(stream)] { queue_nothing(queue); }};
}

std::vector<double> time_in_turns(StreamView stream, const std::vector<TimedCall>& calls,
                                  int repetitions) {
  DeviceClock clock(stream);
  std::vector<std::size_t> counts;
  for (const TimedCall& call : calls) counts.push_back(calls_of(clock, call));
  const Stopwatch warm_up;
  while (warm_up.seconds() < kWarmUpSeconds)
    for (std::size_t i = 0; i < calls.size(); ++i)
      clock.seconds_per_call(calls[i].queue, counts[i]);
  std::vector<std::vector<double>> samples(calls.size());
  for (int repetition = 0; repetition < repetitions; ++repetition)
    for (std::size_t i = 0; i < calls.size(); ++i)
      samples[i].push_back(clock.seconds_per_call(calls[i].queue, counts[i]) /
                           static_cast<double>(calls[i].calls_inside));
  std::vector<double> medians;
  for (const auto& of_call : samples) medians.push_back(median(of_call));
  return medians;
}

}  // namespace tersor::bench
