// The machine of codec operations: memory, clock and plain loops. This file declares the host's
// CPU; bench/micro/gpu/gpu_machine.h declares a GPU.
#pragma once

#include <tersor/buffer.h>
#include <tersor/span.h>
#include <tersor/stream.h>
#include <tersor/threads.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {
class PlannedCodec;
}

namespace tersor::bench {

class CodecOperation;
struct OperationInput;

struct TimedCall {
  std::string name;
  std::function<void()> run;      ///< on a device, queues the call
  std::size_t calls = 0;          ///< calls per sample; 0: enough for one sample
  std::size_t calls_per_run = 1;  ///< calls represented by one `run`
};

/// The main memory access of a call: reads, writes, or updates in place.
enum class Access : std::uint8_t { kRead, kWrite, kUpdate };

/// The minimum memory traffic of a call.
struct MemoryWork {
  Access access = Access::kRead;
  std::size_t bytes = 0;     ///< read plus written bytes
  ConstByteSpan input = {};  ///< for kRead: the bytes to read, on the host
  std::size_t written = 0;   ///< for kRead
};

/// An operation of codecs in a benchmark's name.
struct OperationKind {
  std::string_view name;
  /// True if the codec, with frames, has the operation. `feedback` is true for codecs that accept
  /// residuals. Null: no codec with frames has the operation.
  bool (*has)(const PlannedCodec& codec, bool feedback) = nullptr;
  std::unique_ptr<CodecOperation> (*make)(const OperationInput& input) = nullptr;
  bool checksum = true;  ///< true if the operation writes or reads frames of the codec
  bool parallel = true;  ///< true if the operation uses the threads of the benchmark
  /// The number of values, for operations with a fixed number
  std::size_t (*count)(Dtype dtype, std::size_t tensor_count) = nullptr;
};

/// A plain loop over memory, by the name of its TimedCall.
struct MemoryLoop {
  std::string_view name;
  Access access = Access::kRead;
};

struct MachineTraits {
  std::string_view name;  ///< "cpu" or "cuda": the first part of a benchmark's name
  Memory memory = Memory::kHost;
  StreamView stream = {};
  std::size_t line_bytes = 0;                  ///< smallest unit of memory traffic
  std::size_t reduced_frames = 0;              ///< frames added by "reduce"
  double sample_seconds = 0;                   ///< length of a sample
  std::size_t max_calls = 0;                   ///< maximum number of calls in a sample
  std::vector<MemoryLoop> loops = {};          ///< all loops of `baselines`
  std::vector<OperationKind> operations = {};  ///< in addition to `frame_operations`
};

class Machine {
 public:
  explicit Machine(MachineTraits traits) : traits_(std::move(traits)) {}
  virtual ~Machine() = default;

  const MachineTraits& traits() const { return traits_; }
  bool on_device() const { return traits_.memory == Memory::kDevice; }

  /// The number of buffer sets for calls with this memory traffic per call.
  virtual std::size_t sets(std::size_t bytes) const = 0;
  /// Waits for queued work, then copies between the host and this machine.
  virtual void copy(ConstByteSpan from, ByteSpan to) = 0;
  virtual double seconds_per_call(const std::function<void()>& run, std::size_t calls) = 0;
  /// Plain loops over as many bytes. The first loop is the baseline of the ratio.
  virtual std::vector<TimedCall> baselines(const MemoryWork& work, Threads& threads) = 0;

  /// Returns a copy on the host.
  Buffer on_host(ConstByteSpan bytes);
  /// The number of calls in a sample.
  std::size_t calls_per_sample(const TimedCall& call);
  /// Returns the seconds per call in one sample of `calls` calls.
  double sample(const TimedCall& call, std::size_t calls) {
    return seconds_per_call(call.run, calls) / static_cast<double>(call.calls_per_run);
  }

 private:
  MachineTraits traits_;
};

std::unique_ptr<Machine> make_cpu_machine();

inline constexpr std::string_view kReadLoop = "read";  ///< loads the input
inline constexpr std::string_view kShareLoop =
    "share";  ///< loads the input, streams `written` bytes
inline constexpr std::string_view kCopyLoop = "memcpy";  ///< reads and writes half of `bytes` each
inline constexpr std::string_view kTriadLoop = "triad";  ///< d = a * x + d on f32, in place

/// The loops of the work's access, on all threads of a CPU. They run at the full speed of this
/// machine, with the best instruction set, even if codecs were forced to another set. The input
/// must outlive the calls.
std::vector<TimedCall> memory_loops(const MemoryWork& work, Threads& threads);

/// Returns the index of the current turn among `count` items. A single item needs no division,
/// because a division would slow down short calls.
constexpr std::size_t rotated_index(std::size_t call, std::size_t count) {
  return count == 1 ? 0 : call % count;
}

/// Several equal buffers, used by calls in rotation.
class RotatedBuffer {
 public:
  RotatedBuffer(std::size_t sets, std::size_t bytes, Memory memory);
  /// Copies `contents` (on the host) to all buffers.
  RotatedBuffer(std::size_t sets, ConstByteSpan contents, Machine& machine);

  std::size_t sets() const { return sets_; }
  std::size_t bytes() const { return bytes_; }
  /// The buffer of call number `call`.
  ByteSpan at(std::size_t call) const {
    return {memory_.pointer() + rotated_index(call, sets_) * stride_, bytes_};
  }
  ValueSpan values(std::size_t call, std::size_t count, Dtype dtype) const {
    return {at(call).data(), count, dtype, memory_.memory()};
  }

 private:
  std::size_t sets_, bytes_, stride_;
  Buffer memory_;
};

}  // namespace tersor::bench
