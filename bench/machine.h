// Where the operations of a codec are measured: its memory, its clock, and the plain loops that
// they are held against. Here the host's CPU; a GPU is another (bench/device/gpu_machine.h).
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

/// One thing that is timed in turns with others.
struct TimedCall {
  std::string name;
  std::function<void()> run;     ///< on a device: queues it
  std::size_t calls = 0;         ///< of one sample; 0: as many as fill one
  std::size_t calls_inside = 1;  ///< that one `run` stands for
};

/// What a call does to memory: reads most of it, writes most of it, or changes it in place.
enum class Access : std::uint8_t { kRead, kWrite, kUpdate };

/// The least that a call must do to memory.
struct MemoryWork {
  Access access = Access::kRead;
  std::size_t bytes = 0;     ///< read and written
  ConstByteSpan input = {};  ///< of kRead: what is read, as it lies on the host
  std::size_t written = 0;   ///< of kRead
};

/// How long a sample is.
struct Sampling {
  double seconds = 0;
  std::size_t first_calls = 1;  ///< by which the time of one is guessed
  std::size_t most_calls = 0;
  double warm_up_seconds = 0;  ///< in which clocks rise
};

struct MachineTraits {
  std::string name;
  Memory memory = Memory::kHost;
  StreamView stream = {};
  std::size_t line_bytes = 0;      ///< the least that its memory moves
  std::size_t reduced_frames = 0;  ///< that "reduce" adds
  Sampling sampling = {};
};

class Machine {
 public:
  explicit Machine(MachineTraits traits) : traits_(std::move(traits)) {}
  virtual ~Machine() = default;

  const MachineTraits& traits() const { return traits_; }
  bool on_device() const { return traits_.memory == Memory::kDevice; }

  /// How many sets of buffers calls go round that move so many bytes each.
  virtual std::size_t sets(std::size_t bytes) const = 0;
  /// Copies between the host and this machine, once all that was queued is done.
  virtual void copy(ConstByteSpan from, ByteSpan to) = 0;
  virtual double seconds_per_call(const std::function<void()>& run, std::size_t calls) = 0;
  /// Plain loops of as many bytes; the first is what the ratio is to.
  virtual std::vector<TimedCall> baselines(const MemoryWork& work, Threads& threads) = 0;

  /// Of the operations that only one kind of machine has: whether a codec has it here.
  virtual bool has_operation(std::string_view name, const PlannedCodec& codec) const = 0;
  /// Throws InvalidArgument where there is no such operation.
  virtual std::unique_ptr<CodecOperation> make_operation(std::string_view name,
                                                         const OperationInput& input) = 0;

  /// A copy on the host.
  Buffer on_host(ConstByteSpan bytes);

 private:
  MachineTraits traits_;
};

std::unique_ptr<Machine> make_cpu_machine();

/// The median seconds a call of each, over `repetitions` rounds in which each has one turn.
std::vector<double> time_in_turns(Machine& machine, const std::vector<TimedCall>& calls,
                                  int repetitions);

/// Of `count` things the one whose turn it is. One alone needs no division, which a short call
/// would feel.
constexpr std::size_t turn(std::size_t call, std::size_t count) {
  return count == 1 ? 0 : call % count;
}

/// The same buffer several times; calls take one after the other.
class RotatedBuffer {
 public:
  RotatedBuffer(std::size_t sets, std::size_t bytes, Memory memory);

  std::size_t sets() const { return sets_; }
  std::size_t bytes() const { return bytes_; }
  /// That of call number `call`.
  ByteSpan at(std::size_t call) const {
    return {memory_.pointer() + turn(call, sets_) * stride_, bytes_};
  }
  ValueSpan values(std::size_t call, std::size_t count, Dtype dtype) const {
    return {at(call).data(), count, dtype, memory_.memory()};
  }
  /// Copies `from`, on the host, to all sets.
  void fill(ConstByteSpan from, Machine& machine);

 private:
  std::size_t sets_, bytes_, stride_;
  Buffer memory_;
};

}  // namespace tersor::bench
