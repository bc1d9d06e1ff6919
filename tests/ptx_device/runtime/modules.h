// Modules, kernels and variables of a program, registered by nvcc's code. Modules are parsed and
// kernels are decoded on first use.
#pragma once

#include "tests/ptx_device/machine/machine.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ptx {

struct HostVariable {
  const void* host;
  std::string name;
};

/// One __cudaRegisterFatBinary.
struct Image {
  void* handle = nullptr;
  const char* fat_binary = nullptr;
  std::unique_ptr<Module> module;
  bool is_laid_out = false;
  Variables variables;
  std::vector<HostVariable> host_variables;
};

/// Execution statistics of a kernel.
struct Runs {
  std::uint64_t launches = 0, executed = 0, executed_lanes = 0;
  double seconds = 0;
};

/// The host's record of a kernel.
struct Entry {
  Image* image = nullptr;
  std::string name;
  std::unique_ptr<Kernel> kernel;  // null until load()
  std::size_t most_dynamic = 48 * 1024;
  std::mutex mutex;  // protects the members below
  Runs runs;
};

Image* add_image(const void* wrapper);
void add_entry(Image& image, const void* host, const char* name);
void add_variable(Image& image, const void* host, const char* name);

/// Finds a kernel by the host's function or by cudaKernel_t. Returns null if not found.
Entry* entry_of(const void* function);
std::vector<Entry*> all_entries();
/// Returns cudaSuccess if the kernel is supported.
cudaError_t load(Entry& entry);
cudaError_t load(Entry* entry);
cudaError_t symbol_address(void** pointer, const void* symbol);

}  // namespace ptx
