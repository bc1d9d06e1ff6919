// The modules of a program and their kernels and variables, as the code registers them that nvcc
// makes. A module is read and a kernel is decoded when they are first used.
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

/// What was run of a kernel.
struct Runs {
  std::uint64_t launches = 0, executed = 0, executed_lanes = 0;
  double seconds = 0;
};

/// A kernel, as the host knows it.
struct Entry {
  Image* image = nullptr;
  std::string name;
  std::unique_ptr<Kernel> kernel;  // null until load()
  std::size_t most_dynamic = 48 * 1024;
  std::mutex mutex;  // of what follows
  Runs runs;
};

Image* add_image(const void* wrapper);
void add_entry(Image& image, const void* host, const char* name);
void add_variable(Image& image, const void* host, const char* name);

/// By the host's function or by cudaKernel_t; null: neither.
Entry* entry_of(const void* function);
std::vector<Entry*> all_entries();
/// cudaSuccess where the kernel can run here.
cudaError_t load(Entry& entry);
cudaError_t load(Entry* entry);
cudaError_t symbol_address(void** pointer, const void* symbol);

}  // namespace ptx
