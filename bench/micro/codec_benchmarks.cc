// Names, registration and timing of the benchmarks of codecs.

#include "bench/micro/codec_benchmarks.h"

#include <fmt/format.h>
#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "bench/common/arguments.h"
#include "bench/common/timing.h"
#include "bench/micro/codec_operations.h"

namespace tersor::bench {
namespace {

constexpr std::uint64_t kGradientSeed = 1;

unsigned core_count() { return std::max(1u, std::thread::hardware_concurrency()); }

/// One sample of each reference, in seconds per call.
std::vector<double> sample_all(Machine& machine, const std::vector<TimedCall>& references,
                               const std::vector<std::size_t>& calls) {
  std::vector<double> seconds;
  for (std::size_t i = 0; i < references.size(); ++i)
    seconds.push_back(machine.sample(references[i], calls[i]));
  return seconds;
}

}  // namespace

std::string CodecCase::name(Dtype dtype) const {
  const std::string name = fmt::format("{}/{}/{}/{}/{}/threads:{}", machine->traits().name,
                                       operation == nullptr ? "memory" : operation->name, codec,
                                       dtype_name(dtype), count, threads);
  if (operation == nullptr || !operation->checksum) return name;
  return name + (checksum == Checksum::kOn ? "/checksum:on" : "/checksum:off");
}

CodecBenchmarks::CodecBenchmarks(const MicroOptions& options)
    : options_(options),
      source_(std::make_shared<SampleSource>(options.source)),
      dtype_(parse_gradient_dtype(options.dtype)) {
  if (options_.codecs.empty()) options_.codecs = all_specs();
  if (options_.counts.empty()) options_.counts = {source_->count().value_or(kDefaultCount)};
  if (options_.threads.empty()) options_.threads = {1, core_count()};
  for (std::string& spec : options_.codecs) spec = with_feedback(spec, Feedback::kNone);
  options_.codecs = deduplicated(options_.codecs);
  options_.counts = deduplicated(options_.counts);
  options_.threads = deduplicated(options_.threads);
}

void CodecBenchmarks::register_on(Machine& machine) {
  for (const std::size_t count : options_.counts) {
    for (const MemoryLoop& loop : machine.traits().loops)
      register_threads({&machine, nullptr, std::string(loop.name), count});
    for (const std::string& spec : options_.codecs) register_codec(machine, spec, count);
  }
}

void CodecBenchmarks::register_codec(Machine& machine, const std::string& spec, std::size_t count) {
  for (const OperationKind* operation : operations_of(machine, spec, count, dtype_)) {
    const bool fixed = operation->count != nullptr;
    if (fixed && count != options_.counts.front()) continue;
    register_threads({&machine, operation, spec,
                      fixed ? operation->count(dtype_, options_.tensor_count) : count});
  }
}

void CodecBenchmarks::register_threads(CodecCase config) {
  const bool serial =
      config.machine->on_device() || (config.operation != nullptr && !config.operation->parallel);
  for (const unsigned threads : serial ? std::vector{1u} : options_.threads) {
    config.threads = threads;
    config.checksum = Checksum::kOff;
    register_case(config);
    if (config.operation == nullptr || !config.operation->checksum) continue;
    config.checksum = Checksum::kOn;
    register_case(config);
  }
}

void CodecBenchmarks::register_case(const CodecCase& config) {
  auto* registered = benchmark::RegisterBenchmark(
      config.name(dtype_).c_str(), [this, config](benchmark::State& state) { run(state, config); });
  registered->Unit(benchmark::kMicrosecond);
  if (config.machine->on_device())
    registered->UseManualTime();
  else
    registered->UseRealTime();
}

void CodecBenchmarks::run(benchmark::State& state, const CodecCase& config) {
  try {
    time(state, prepare(config));
  } catch (const std::exception& error) {
    prepared_.reset();
    failed_ = true;
    state.SkipWithError(error.what());
  }
}

/// The references are sampled before and after the timed calls. Drift of the machine then affects
/// both sides of a ratio.
void CodecBenchmarks::time(benchmark::State& state, Prepared& prepared) {
  Machine& machine = *prepared.config.machine;
  const TimedCall& timed = prepared.timed;
  const auto before = sample_all(machine, prepared.references, prepared.reference_calls);
  double seconds = 0;
  if (machine.on_device()) {
    const auto calls = static_cast<benchmark::IterationCount>(prepared.batch * timed.calls_per_run);
    while (state.KeepRunningBatch(calls)) {
      const double batch_seconds =
          machine.sample(timed, prepared.batch) * static_cast<double>(calls);
      state.SetIterationTime(batch_seconds);
      seconds += batch_seconds;
    }
  } else {
    timed.run();  // the references have used the caches
    const Stopwatch watch;
    for ([[maybe_unused]] auto iteration : state) timed.run();
    seconds = watch.seconds();
  }
  seconds /= static_cast<double>(state.iterations());
  const auto after = sample_all(machine, prepared.references, prepared.reference_calls);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::string name = i == 0 ? "ratio" : prepared.references[i].name + "_ratio";
    state.counters[name] = (before[i] + after[i]) / 2 / seconds;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(prepared.moved_bytes));
  if (prepared.operation == nullptr) return;
  state.SetLabel(prepared.references.front().name);
  state.counters["relative_error"] = prepared.relative_error;
  state.counters["payload_bytes"] = static_cast<double>(prepared.operation->payload_bytes());
  state.counters["workspace_bytes"] = static_cast<double>(prepared.operation->workspace_bytes());
}

CodecBenchmarks::Prepared& CodecBenchmarks::prepare(const CodecCase& config) {
  if (prepared_ && prepared_->config == config) return *prepared_;
  prepared_.reset();
  Prepared& prepared = prepared_.emplace();
  prepared.config = config;
  if (config.operation == nullptr)
    prepare_loop(prepared);
  else
    prepare_operation(prepared);
  Machine& machine = *config.machine;
  if (machine.on_device()) prepared.batch = machine.calls_per_sample(prepared.timed);
  for (const TimedCall& reference : prepared.references)
    prepared.reference_calls.push_back(machine.calls_per_sample(reference));
  return prepared;
}

/// Checks the result.
void CodecBenchmarks::prepare_operation(Prepared& prepared) {
  const CodecCase& config = prepared.config;
  const ConstValueSpan gradient = gradient_of(config.count);
  const bool on_device = config.machine->on_device();
  prepared.operation =
      config.operation->make({.codec = config.codec,
                              .count = config.count,
                              .source = source_,
                              .storage = gradient_,
                              .gradient = gradient,
                              .checksum = config.checksum,
                              .threads = &threads_of(on_device ? core_count() : config.threads),
                              .machine = config.machine});
  CodecOperation& operation = *prepared.operation;
  prepared.relative_error = operation.check();
  prepared.moved_bytes = operation.useful_bytes();
  prepared.timed = operation.timed();
  prepared.references = operation.references();
}

/// The loops of the machine for as many bytes as the gradient.
void CodecBenchmarks::prepare_loop(Prepared& prepared) {
  const CodecCase& config = prepared.config;
  const ConstValueSpan gradient = gradient_of(config.count).subspan(0, config.count);
  const std::vector<MemoryLoop>& loops = config.machine->traits().loops;
  const auto loop = std::ranges::find(loops, config.codec, &MemoryLoop::name);
  MemoryWork work{.access = loop->access, .bytes = gradient.bytes()};
  prepared.moved_bytes = work.bytes;
  if (work.access == Access::kRead) {
    work.input = {gradient.pointer(), gradient.bytes()};
    work.written = work.bytes / 4;
    if (config.codec == "share") prepared.moved_bytes += work.written;
  }
  std::vector<TimedCall> calls = config.machine->baselines(work, threads_of(config.threads));
  prepared.timed = *std::ranges::find(calls, config.codec, &TimedCall::name);
}

Threads& CodecBenchmarks::threads_of(unsigned count) {
  if (threads_ == nullptr || threads_->count() != count)
    threads_ = std::make_unique<Threads>(count);
  return *threads_;
}

/// A gradient longer than the encoded count, so each step sees other values. The extra length is
/// small enough for the cache if the gradient fits.
ConstValueSpan CodecBenchmarks::gradient_of(std::size_t count) {
  const std::size_t spare = std::min<std::size_t>(count / 8, std::size_t{1} << 20);
  const std::size_t all = std::max(count, source_->count().value_or(count + spare));
  if (gradient_ == nullptr || gradient_->bytes() != all * dtype_bytes(dtype_)) {
    gradient_ = nullptr;
    gradient_ = std::make_shared<Buffer>(sample_buffer(*source_, all, dtype_, kGradientSeed));
  }
  return gradient_->values(all, dtype_);
}

}  // namespace tersor::bench
