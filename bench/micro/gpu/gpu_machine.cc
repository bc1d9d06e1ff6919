// Times calls by events. The baselines are a copy, a read and a memset of as many bytes. Buffers
// rotate and have left the cache before the next use.

#include "bench/micro/gpu/gpu_machine.h"

#include "bench/common/gpu/gpu.h"
#include "bench/micro/gpu/kernels.h"

namespace tersor::bench {
namespace {

constexpr int kPattern = 0x5a;
constexpr std::size_t kHalfAlignment = 256;

/// Random bytes for the copy and read baselines, shared by their calls.
struct Arena {
  Arena(std::size_t sets, std::size_t bytes, StreamView on)
      : stream(stream_of(on)),
        half(align_up(bytes / 2, kHalfAlignment)),
        buffers(sets, 2 * half, Memory::kDevice),
        sink(sizeof(std::uint32_t), Memory::kDevice) {
    for (std::size_t set = 0; set < sets; ++set)
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

std::vector<OperationKind> device_operations() {
  std::vector<OperationKind> all = alternative_operations();
  const std::vector<OperationKind> launches = launch_operations();
  all.insert(all.end(), launches.begin(), launches.end());
  return all;
}

class GpuMachine : public Machine {
 public:
  explicit GpuMachine(StreamView stream)
      : Machine({.name = "cuda",
                 .memory = Memory::kDevice,
                 .stream = stream,
                 .line_bytes = 32,  // a sector
                 .reduced_frames = 8,
                 .sample_seconds = 3e-3,
                 .max_calls = 1000,  // about the capacity of a queue
                 .loops = {{"copy", Access::kRead},
                           {"read", Access::kRead},
                           {"memset", Access::kWrite}},
                 .operations = device_operations()}),
        cache_bytes_(cache_bytes()),
        clock_(stream) {}

  std::size_t sets(std::size_t bytes) const override { return rotation_sets(cache_bytes_, bytes); }

  void copy(ConstByteSpan from, ByteSpan to) override { copy_bytes(from, to, traits().stream); }

  double seconds_per_call(const std::function<void()>& run, std::size_t calls) override {
    return clock_.seconds_per_call(run, calls);
  }

  std::vector<TimedCall> baselines(const MemoryWork& work, Threads&) override {
    const auto arena = std::make_shared<Arena>(sets(work.bytes), work.bytes, traits().stream);
    std::vector<TimedCall> calls = {{"copy", [arena] { arena->copy(); }},
                                    {"read", [arena] { arena->read(); }}};
    if (work.access != Access::kWrite) return calls;
    const auto cleared =  // a separate arena, because memset would overwrite the random bytes
        std::make_shared<Arena>(sets(work.bytes), work.bytes, traits().stream);
    calls.push_back({"memset", [cleared] { cleared->clear(); }});
    return calls;
  }

 private:
  std::size_t cache_bytes_;
  DeviceClock clock_;
};

}  // namespace

std::unique_ptr<Machine> make_gpu_machine(StreamView stream) {
  return std::make_unique<GpuMachine>(stream);
}

}  // namespace tersor::bench
