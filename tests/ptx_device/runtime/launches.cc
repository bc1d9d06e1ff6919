// See launches.h: functions for kernel launches, including the functions called by nvcc's code.
#include "tests/ptx_device/runtime/launches.h"

#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/modules.h"
#include "tests/ptx_device/runtime/queue.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

namespace ptx {
namespace {

constexpr std::size_t kMostShared = 227 * 1024;

/// The arguments of <<<…>>>.
struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

cudaError_t status_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone:
      return cudaSuccess;
    case FaultKind::kAddress:
      return cudaErrorIllegalAddress;
    case FaultKind::kMisaligned:
      return cudaErrorMisalignedAddress;
    case FaultKind::kInstruction:
      return cudaErrorIllegalInstruction;
    case FaultKind::kAssert:
      return cudaErrorAssert;
    case FaultKind::kFailure:
      return cudaErrorLaunchFailure;
  }
  return cudaErrorLaunchFailure;
}

/// A launch runs once, but a captured launch runs with every launch of the graph.
void copy_plan(const Launch& plan, Launch& launch) {
  launch.kernel = plan.kernel;
  std::copy(plan.grid, plan.grid + 3, launch.grid);
  std::copy(plan.block, plan.block + 3, launch.block);
  launch.dynamic_shared = plan.dynamic_shared;
  launch.params = plan.params;
  launch.number = next_launch();
}

/// Returns the duration in seconds.
double run_to_its_end(Launch& launch) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run(launch);
  } catch (const Fault& fault) {
    launch.fault = fault;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void record(Entry& entry, const Launch& launch, double seconds) {
  const std::lock_guard lock(entry.mutex);
  ++entry.runs.launches;
  entry.runs.executed += launch.executed;
  entry.runs.executed_lanes += launch.executed_lanes;
  entry.runs.seconds += seconds;
}

void log(const Launch& launch, double seconds) {
  if (settings().log == 0) return;
  std::fprintf(stderr, "ptx-device: %s <<<%u, %u>>>: %.3f ms, %llu instructions of warps\n",
               launch.kernel->name.c_str(), launch.grid[0], launch.block[0], 1e3 * seconds,
               static_cast<unsigned long long>(launch.executed));
}

void run_entry(Entry& entry, const Launch& plan) {
  Launch launch;
  copy_plan(plan, launch);
  const double seconds = run_to_its_end(launch);
  record(entry, launch, seconds);
  log(launch, seconds);
  if (launch.fault.kind == FaultKind::kNone) return;
  std::fprintf(stderr, "%s\n", launch.fault.text.c_str());
  break_device(status_of(launch.fault.kind));
}

cudaError_t check(const Entry& entry, const Configuration& asked) {
  const dim3 &grid = asked.grid, &block = asked.block;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  const bool is_empty = threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0;
  const bool is_large_block = block.x > 1024 || block.y > 1024 || block.z > 64 || threads > 1024;
  const bool is_large_grid = grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535;
  if (is_empty || is_large_block || is_large_grid) return cudaErrorInvalidConfiguration;
  const Kernel& kernel = *entry.kernel;
  if (kernel.max_threads != 0 && threads > kernel.max_threads) return cudaErrorInvalidValue;
  if (asked.shared > entry.most_dynamic || asked.shared + kernel.shared_bytes > kMostShared)
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

std::shared_ptr<Launch> make_plan(const Kernel& kernel, const Configuration& asked,
                                  void** arguments) {
  auto plan = std::make_shared<Launch>();
  plan->kernel = &kernel;
  const unsigned grid[] = {asked.grid.x, asked.grid.y, asked.grid.z};
  const unsigned block[] = {asked.block.x, asked.block.y, asked.block.z};
  std::copy(grid, grid + 3, plan->grid);
  std::copy(block, block + 3, plan->block);
  plan->dynamic_shared = asked.shared;
  plan->params.resize(kernel.param_bytes);
  for (std::size_t i = 0; i < kernel.params.size(); ++i)
    std::memcpy(plan->params.data() + kernel.params[i].offset, arguments[i],
                kernel.params[i].bytes);
  return plan;
}

cudaError_t launch(Entry* entry, const Configuration& asked, void** arguments) {
  cudaError_t status = load(entry);
  if (status == cudaSuccess) status = check(*entry, asked);
  if (status != cudaSuccess) return status;
  const auto plan = make_plan(*entry->kernel, asked, arguments);
  return queue(asked.stream, [entry, plan] { run_entry(*entry, *plan); });
}

bool is_cluster(const cudaLaunchAttribute& attribute) {
  const auto& cluster = attribute.val.clusterDim;
  return attribute.id == cudaLaunchAttributeClusterDimension &&
         cluster.x * cluster.y * cluster.z > 1;
}

}  // namespace

std::uint64_t next_launch() {
  static std::atomic<std::uint64_t> count{0};
  return ++count;
}

}  // namespace ptx

using namespace ptx;

extern "C" {

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  if (configurations.empty()) return done(cudaErrorMissingConfiguration);
  const Configuration& top = configurations.back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  configurations.pop_back();
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  PTX_API;
  return done(launch(reinterpret_cast<Entry*>(kernel), {grid, block, shared, stream}, arguments));
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared, cudaStream_t stream) {
  PTX_API;
  return done(launch(entry_of(function), {grid, block, shared, stream}, arguments));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  PTX_API;
  if (std::any_of(config->attrs, config->attrs + config->numAttrs, is_cluster))
    return done(cudaErrorNotSupported);
  const Configuration asked{config->gridDim, config->blockDim, config->dynamicSmemBytes,
                            config->stream};
  return done(launch(entry_of(function), asked, arguments));
}

}  // extern "C"
