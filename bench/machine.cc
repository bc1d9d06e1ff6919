
#include "bench/machine.h"

#include <tersor/align.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/baselines.h"
#include "bench/codec_operation.h"
#include "bench/records.h"
#include "bench/timing.h"
#include "bench/topk_operations.h"

namespace tersor::bench {
namespace {

constexpr std::size_t kSetAlignment = 512;  // bytes; alignment of sets, as with cudaMalloc

/// Calls reuse the same buffers and find the data in the caches.
class CpuMachine : public Machine {
 public:
  CpuMachine()
      : Machine({.name = machine_name(),
                 .line_bytes = 64,
                 .reduced_frames = 4,
                 .sampling = {.seconds = 1e-3, .first_calls = 1, .most_calls = 1'000'000}}) {}

  std::size_t sets(std::size_t) const override { return 1; }

  void copy(ConstByteSpan from, ByteSpan to) override {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }

  double seconds_per_call(const std::function<void()>& run, std::size_t calls) override {
    return bench::seconds_per_call(calls, run);
  }

  std::vector<TimedCall> baselines(const MemoryWork& work, Threads& threads) override {
    if (work.access == Access::kRead)
      return {read_baseline(work.input, threads),
              share_baseline(work.input, work.written, threads)};
    if (work.access == Access::kWrite) return {copy_baseline(work.bytes, threads)};
    return {triad_baseline(work.bytes, threads)};
  }

  bool has_operation(std::string_view name, const PlannedCodec& codec) const override {
    return has_topk_operation(name, codec);
  }
  std::unique_ptr<CodecOperation> make_operation(std::string_view name,
                                                 const OperationInput& input) override {
    return make_topk_operation(name, input);
  }
};

std::size_t calls_of(Machine& machine, const TimedCall& call) {
  if (call.calls != 0) return call.calls;
  const Sampling& sampling = machine.traits().sampling;
  machine.seconds_per_call(call.run, 1);
  const double seconds = std::max(machine.seconds_per_call(call.run, sampling.first_calls), 1e-9);
  return static_cast<std::size_t>(std::clamp(std::ceil(sampling.seconds / seconds), 1.0,
                                             static_cast<double>(sampling.most_calls)));
}

}  // namespace

std::unique_ptr<Machine> make_cpu_machine() { return std::make_unique<CpuMachine>(); }

Buffer Machine::on_host(ConstByteSpan bytes) {
  Buffer host(bytes.size());
  copy(bytes, host.span());
  return host;
}

std::vector<double> time_alternately(Machine& machine, const std::vector<TimedCall>& calls,
                                     int repetitions) {
  std::vector<std::size_t> counts;
  for (const TimedCall& call : calls) counts.push_back(calls_of(machine, call));
  const Stopwatch warm_up;
  while (warm_up.seconds() < machine.traits().sampling.warm_up_seconds)
    for (std::size_t i = 0; i < calls.size(); ++i)
      machine.seconds_per_call(calls[i].run, counts[i]);
  std::vector<std::vector<double>> samples(calls.size());
  for (int repetition = 0; repetition < repetitions; ++repetition)
    for (std::size_t i = 0; i < calls.size(); ++i)
      samples[i].push_back(machine.seconds_per_call(calls[i].run, counts[i]) /
                           static_cast<double>(calls[i].calls_inside));
  std::vector<double> medians;
  for (const auto& of_call : samples) medians.push_back(median(of_call));
  return medians;
}

RotatedBuffer::RotatedBuffer(std::size_t sets, std::size_t bytes, Memory memory)
    : sets_(sets),
      bytes_(bytes),
      stride_(align_up(bytes, kSetAlignment)),
      memory_(sets * stride_, memory) {}

void RotatedBuffer::fill(ConstByteSpan from, Machine& machine) {
  for (std::size_t set = 0; set < sets_; ++set)
    machine.copy(set == 0 ? from : at(0).first(from.size()), at(set));
}

}  // namespace tersor::bench
