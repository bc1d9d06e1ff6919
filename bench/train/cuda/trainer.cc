// A trainer on GPUs with one process per rank. Tersor reduces the gradients with the five lines of
// docs/how-to/gpu.md. Without a rank in the environment, the program starts the ranks. Status 1
// means: ranks end with different bits, or the loss did not fall.
//
// usage: tersor-trainer-cuda [--ranks N] [--steps N] [--hidden N] [--codec SPEC...]
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <tersor/nccl.h>
#include <tersor/tersor.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>

#include "bench/processes/rank_processes.h"
#include "bench/train/cuda/teacher.h"
#include "bench/train/trainer/network.h"

namespace trainer {
namespace {

using tersor::bench::RankIdentity;

constexpr std::size_t kInputs = 256, kClasses = 10, kBatch = 128;
constexpr float kRate = 0.1f;
constexpr std::size_t kLastSteps = 20;  // maximum steps in the final averages
constexpr std::chrono::seconds kToMeet{60};

struct Options {
  int ranks = 2;
  std::size_t steps = 300;
  std::size_t hidden = 1024;  ///< width of both hidden layers
  std::vector<std::string> codecs = {"none", "int8", "topk:density=0.01+ef"};
};

/// Results of the first step and of the last steps on this rank.
struct Learnt {
  BatchResult first, last;
  double seconds_per_step = 0;
  std::vector<std::byte> values;
};

std::vector<std::byte> values_of(const Network<GpuMachine>& network, const GpuMachine& machine) {
  std::vector<std::byte> all;
  for (const Parameter& parameter : network.parameters()) {
    const std::size_t before = all.size();
    all.resize(before + parameter.values.bytes());
    machine.copy(all.data() + before, parameter.values.pointer(), parameter.values.bytes());
  }
  machine.synchronize();
  return all;
}

void note(const BatchResult& result, std::size_t step, std::size_t steps, Learnt& learnt) {
  if (step == 0) learnt.first = result;
  const std::size_t averaged = std::min(kLastSteps, steps - 1);
  if (step + averaged < steps) return;
  learnt.last.loss += result.loss / static_cast<double>(averaged);
  learnt.last.right += result.right / static_cast<double>(averaged);
}

Learnt train(tersor::Transport* transport, const Options& options, const std::string& codec) {
  const std::size_t steps = options.steps, hidden = options.hidden;
  const tersor::Stream own;
  const tersor::StreamView stream = own.view();
  const GpuMachine machine(stream);
  Network network(machine, std::vector{kInputs, hidden, hidden, kClasses}, 1);
  Teacher teacher(kInputs, kClasses, 100 + static_cast<unsigned>(transport->rank()));
  Learnt learnt;
  const auto start = std::chrono::steady_clock::now();
  tersor::GradientReducer reducer(*transport, {.codec = codec, .stream = stream});
  for (const Parameter& p : network.parameters())
    reducer.add(p.name, p.gradient, p.rows, p.columns);
  for (std::size_t step = 0; step < steps; ++step) {
    const Examples batch = teacher.batch(kBatch);
    network.forward(batch);
    network.backward([&](const Parameter& p) { reducer.ready(p.name); });
    reducer.wait();
    network.descend(kRate);
    note(network.result(), step, steps, learnt);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  learnt.seconds_per_step = seconds.count() / static_cast<double>(steps);
  learnt.values = values_of(network, machine);
  return learnt;
}

/// Throws tersor::Error on all ranks unless all ranks hold the same bits.
void check_same(tersor::Transport& transport, const std::vector<std::byte>& own) {
  const tersor::Operation operation{.name = "comparing", .tag = transport.reserve_tags(1)};
  tersor::Handle handle = transport.all_gather(operation, own, own.size());
  handle.wait_synchronize();
  for (int rank = 0; rank < transport.ranks(); ++rank)
    if (rank != transport.rank() && !std::ranges::equal(handle.received(rank), own))
      throw tersor::Error(
          fmt::format("ranks {} and {} learnt different bits", transport.rank(), rank));
}

int device_count() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    throw tersor::CudaError("this machine has no GPU that can be used");
  return devices;
}

void run_rank(const RankIdentity& identity, const Options& options) {
  cudaSetDevice(tersor::bench::device_of(identity.rank, device_count()));
  const auto id_file = identity.file;
  const int rank = identity.rank, ranks = identity.ranks;
  const auto transport = tersor::make_nccl_transport(
      tersor::NcclCommunicator::from_file(id_file, rank, ranks, kToMeet));
  if (rank == 0) fmt::print("{} ranks, {}\n", ranks, tersor::nccl_library());
  for (const std::string& codec : options.codecs) {
    const Learnt learnt = train(transport.get(), options, codec);
    check_same(*transport, learnt.values);
    if (!(learnt.last.loss < learnt.first.loss))
      throw tersor::Error(fmt::format("{}: the loss did not fall: {:.4f}, then {:.4f}", codec,
                                      learnt.first.loss, learnt.last.loss));
    if (rank == 0)
      fmt::print(
          "{}: loss {:.4f}, accuracy {:.1f} %, after {} steps of {:.0f} us; same bits on all "
          "ranks\n",
          codec, learnt.last.loss, 100 * learnt.last.right / kBatch, options.steps,
          1e6 * learnt.seconds_per_step);
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App program("Trains a perceptron on GPUs, its gradients shared by Tersor over NCCL",
                   "tersor-trainer-cuda");
  program.add_option("--ranks", options.ranks, "Processes to start")->check(CLI::Range(1, 64));
  program.add_option("--steps", options.steps)
      ->check(CLI::Range(std::size_t{2}, std::size_t{1} << 20));
  program.add_option("--hidden", options.hidden, "Width of the hidden layers")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 14));
  program.add_option("--codec", options.codecs, "One training for each");
  CLI11_PARSE(program, argc, argv);
  const auto identity = tersor::bench::identity_of_process();
  if (identity)
    run_rank(*identity, options);
  else
    tersor::bench::run_rank_processes(options.ranks, device_count());
  return 0;
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  try {
    return trainer::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tersor-trainer-cuda: {}\n", error.what());
    return 1;
  }
}
