
#include "bench/micro/machine.h"

#include <tersor/align.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/common/timing.h"
#include "bench/micro/codec_operations.h"

namespace tersor::bench {
namespace {

constexpr std::size_t kSetAlignment = 512;  // bytes; alignment of sets, as with cudaMalloc

/// Calls reuse the same buffers and find the data in the caches.
class CpuMachine : public Machine {
 public:
  CpuMachine()
      : Machine({.name = "cpu",
                 .line_bytes = 64,
                 .reduced_frames = 4,
                 .sample_seconds = 1e-3,
                 .max_calls = 1'000'000,
                 .loops = {{kReadLoop, Access::kRead},
                           {kShareLoop, Access::kRead},
                           {kCopyLoop, Access::kWrite},
                           {kTriadLoop, Access::kUpdate}},
                 .operations = {select_reference()}}) {}

  std::size_t sets(std::size_t) const override { return 1; }

  void copy(ConstByteSpan from, ByteSpan to) override {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }

  double seconds_per_call(const std::function<void()>& run, std::size_t calls) override {
    const Stopwatch watch;
    for (std::size_t call = 0; call < calls; ++call) run();
    return watch.seconds() / static_cast<double>(calls);
  }

  std::vector<TimedCall> baselines(const MemoryWork& work, Threads& threads) override {
    return memory_loops(work, threads);
  }
};

}  // namespace

std::unique_ptr<Machine> make_cpu_machine() { return std::make_unique<CpuMachine>(); }

Buffer Machine::on_host(ConstByteSpan bytes) {
  Buffer host(bytes.size());
  copy(bytes, host.span());
  return host;
}

std::size_t Machine::calls_per_sample(const TimedCall& call) {
  if (call.calls != 0) return call.calls;
  seconds_per_call(call.run, 1);
  const double seconds = std::max(seconds_per_call(call.run, 1), 1e-9);
  return static_cast<std::size_t>(std::clamp(std::ceil(traits_.sample_seconds / seconds), 1.0,
                                             static_cast<double>(traits_.max_calls)));
}

RotatedBuffer::RotatedBuffer(std::size_t sets, std::size_t bytes, Memory memory)
    : sets_(sets),
      bytes_(bytes),
      stride_(align_up(bytes, kSetAlignment)),
      memory_(sets * stride_, memory) {}

RotatedBuffer::RotatedBuffer(std::size_t sets, ConstByteSpan contents, Machine& machine)
    : RotatedBuffer(sets, contents.size(), machine.traits().memory) {
  for (std::size_t set = 0; set < sets_; ++set)
    machine.copy(set == 0 ? contents : ConstByteSpan(at(0)), at(set));
}

}  // namespace tersor::bench
