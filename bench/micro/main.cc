// tersor-microbench: operations of codecs, memory loops and transports as benchmarks of Google
// Benchmark.

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <tersor/error.h>
#include <tersor/isa.h>
#include <tersor/stream.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bench/common/arguments.h"
#include "bench/common/records.h"
#include "bench/micro/codec_benchmarks.h"
#include "bench/micro/transport_benchmarks.h"
#if TERSOR_HAS_CUDA
#include "bench/micro/gpu/gpu_machine.h"
#include "kernels/device/device.h"
#endif

namespace tersor::bench {
namespace {

constexpr const char* kDescription =
    "Times codecs, memory loops and transports with Google Benchmark. A name has all fields:\n"
    "  cpu/encode/int8/f32/67108864/threads:1/checksum:off    cuda/...    cpu/memory/read/...\n"
    "  inproc/ping_pong/bytes:8    tcp/exchange/bytes:131072    mpi/... under mpirun -n 2\n"
    "Options of Google Benchmark, each as --NAME=VALUE:\n"
    "  --benchmark_filter=REGEX --benchmark_list_tests=true --benchmark_repetitions=N\n"
    "  --benchmark_enable_random_interleaving=true --benchmark_out=FILE.json\n"
    "docs/how-to/benchmark.md is a guide.";

void add_options(CLI::App& command, MicroOptions& options) {
  const auto isa = [](const std::string& name) { return std::string(isa_name(parse_isa(name))); };
  add_codecs(command, options.codecs);
  command
      .add_option("--count", options.counts, "Values; K, M and G are 1024s (64M, or all of FILE)")
      ->transform(size_suffix())
      ->type_name("N");
  add(command, "--tensor", options.tensor_count, "Values of each of multi_tensor's 500 tensors",
      "N", size_suffix(within(1, 1 << 20)));
  add_dtype(command, options.dtype);
  command
      .add_option("--isa", options.isa,
                  "Instruction set of the codecs: portable, avx2, avx512 or neon (the best one)")
      ->transform(checked(isa))
      ->type_name("ISA");
  add_data(command, options.source);
  command.add_option("--threads", options.threads, "Threads of a codec (1, and one per core)")
      ->transform(within(1, 1024))
      ->type_name("N");
}

/// The current GPU, if this machine has a GPU.
class OptionalGpu {
 public:
  OptionalGpu() {
    try {
      stream_.emplace();
#if TERSOR_HAS_CUDA
      machine_ = make_gpu_machine(stream_->view());
      benchmark::AddCustomContext("gpu", kernels::device_name());
#endif
    } catch (const CudaError& error) {
      reason_ = error.what();
    }
  }

  Machine* machine() const { return machine_.get(); }
  const std::string& reason() const { return reason_; }

 private:
  std::optional<Stream> stream_;
  std::unique_ptr<Machine> machine_;
  std::string reason_;
};

void add_context(const MicroOptions& options) {
  benchmark::AddCustomContext("machine", machine_name());
  benchmark::AddCustomContext("commit", commit_name());
  benchmark::AddCustomContext("data", options.source);
  benchmark::AddCustomContext("isa", std::string(isa_name(current_isa())));
}

/// Google Benchmark has printed that nothing matches, or why the filter is invalid.
[[noreturn]] void reject_filter(const OptionalGpu& gpu) {
  const std::string no_gpu_text =
      gpu.machine() == nullptr ? fmt::format(" (no benchmarks of cuda: {})", gpu.reason()) : "";
  throw InvalidArgumentError(
      fmt::format("no benchmark matches --benchmark_filter={}; a name is like "
                  "cpu/encode/int8/f32/67108864/threads:1/checksum:off, and "
                  "--benchmark_list_tests=true prints all names{}",
                  benchmark::GetBenchmarkFilter(), no_gpu_text));
}

/// Two ranks over MPI, if a launcher of MPI started this process; otherwise null.
std::unique_ptr<Fleet> mpi_fleet() {
  constexpr const char* kVariables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
  if (!TERSOR_HAS_MPI || std::ranges::none_of(kVariables, std::getenv)) return nullptr;
  auto fleet = make_fleet({.transport = "mpi"});
  if (fleet->ranks() != 2)
    throw InvalidArgumentError(fmt::format(
        "mpirun started {} ranks, but a transport is measured between 2: say mpirun -n 2",
        fleet->ranks()));
  return fleet;
}

void run(const MicroOptions& options) {
  std::unique_ptr<Fleet> mpi = mpi_fleet();
  if (mpi != nullptr && !mpi->has_rank0())
    return mpi->run([](Rank& rank) { serve(rank.transport()); });
  if (!options.isa.empty()) force_isa(parse_isa(options.isa));
  add_context(options);
  const OptionalGpu gpu;
  const std::unique_ptr<Machine> cpu = make_cpu_machine();
  CodecBenchmarks codecs(options);
  codecs.register_on(*cpu);
  if (gpu.machine() != nullptr) codecs.register_on(*gpu.machine());
  std::deque<TransportBenchmarks> transports;
  transports.emplace_back("inproc", make_thread_fleet(2, {}));
#if TERSOR_HAS_TCP
  transports.emplace_back("tcp", make_loopback_fleet(2));
#endif
  if (mpi != nullptr) transports.emplace_back("mpi", std::move(mpi));
  if (benchmark::RunSpecifiedBenchmarks() == 0) reject_filter(gpu);
  if (codecs.failed() || std::ranges::any_of(transports, &TransportBenchmarks::failed))
    throw Error("a benchmark failed, see above");
}

}  // namespace
}  // namespace tersor::bench

int main(int argc, char** argv) {
  using namespace tersor::bench;
  const bool help = std::any_of(
      argv, argv + argc, [](std::string_view word) { return word == "--help" || word == "-h"; });
  if (!help) benchmark::Initialize(&argc, argv);  // takes --help for its own options alone
  MicroOptions options;
  CLI::App program(kDescription, "tersor-microbench");
  add_options(program, options);
  program.callback([&options] { run(options); });
  return run_command(program, argc, argv);
}
