// CUDA's runtime functions, and those that nvcc's code calls behind one's back, on a device that
// interprets PTX. A library of this takes the place of libcudart.so.
#include "tests/ptx_device/runtime/device.h"
#include "tests/ptx_device/runtime/hooks.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>

namespace ptx {
namespace {

using Work = std::function<void()>;

// ---- Modules and functions -----------------------------------------------------------------------

struct Image;

struct Entry {
  Image* image = nullptr;
  std::string name;
  std::unique_ptr<Kernel> kernel;
  std::size_t most_dynamic = 48 * 1024;
  std::uint64_t launches = 0, executed = 0, executed_lanes = 0;
  double seconds = 0;
  bool used = false;
};
struct HostVariable {
  const void* host;
  std::string name;
  std::size_t bytes;
  bool is_constant;
};
/// One __cudaRegisterFatBinary.
struct Image {
  void* handle = nullptr;
  const char* fatbin = nullptr;
  std::unique_ptr<Module> module;
  bool has_machine_code = false, is_compressed = false, laid_out = false;
  Variables variables;
  std::vector<HostVariable> host_variables;
};

struct State {
  std::recursive_mutex mutex;
  std::vector<std::unique_ptr<Image>> images;
  std::unordered_map<const void*, std::unique_ptr<Entry>> entries;  // by host function
  std::set<Stream*> streams;
  std::map<int, Stream*> null_streams;
  std::map<std::uint64_t, std::unique_ptr<Capture>> captures;
  std::uint64_t capture_count = 0;
  std::atomic<cudaError_t> sticky{cudaSuccess};
  std::atomic<std::uint64_t> launch_count{0};
};
State& state() {
  static auto* state = new State;
  return *state;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;
thread_local int capture_mode = cudaStreamCaptureModeGlobal;

cudaError_t done(cudaError_t status) {
  if (status != cudaSuccess && status != cudaErrorNotReady) last_error = status;
  return status;
}
cudaError_t sticky() { return state().sticky; }

#define PTX_API(name)                                                        \
  if (settings().log > 1) std::fprintf(stderr, "ptx-device: %s\n", name);    \
  if (const cudaError_t broken = sticky(); broken != cudaSuccess) return done(broken)

/// The best PTX of a fatbin.
void open_image(Image& image) {
  if (image.module != nullptr || image.fatbin == nullptr) return;
  const char* at = image.fatbin;
  std::uint32_t magic;
  std::uint16_t header_bytes;
  std::uint64_t bytes;
  const int capability = settings().major * 10 + settings().minor;
  std::uint32_t best = 0;
  std::string text;
  std::memcpy(&magic, at, 4);
  std::memcpy(&header_bytes, at + 6, 2);
  std::memcpy(&bytes, at + 8, 8);
  if (magic != 0xBA55ED50u) {
    std::fprintf(stderr, "ptx-device: a fat binary of an unknown kind\n");
    return;
  }
  const char* end = at + header_bytes + bytes;
  for (at += header_bytes; at < end;) {
    std::uint16_t kind;
    std::uint32_t entry_header, arch;
    std::uint64_t entry_bytes, flags;
    std::memcpy(&kind, at, 2);
    std::memcpy(&entry_header, at + 4, 4);
    std::memcpy(&entry_bytes, at + 8, 8);
    std::memcpy(&arch, at + 28, 4);
    std::memcpy(&flags, at + 40, 8);
    if (kind != 1) {
      image.has_machine_code = true;
    } else if ((flags & 0xf000) != 0) {
      image.is_compressed = true;
    } else if (static_cast<int>(arch) <= capability && arch >= best) {
      best = arch;
      const char* begin = at + entry_header;
      text.assign(begin, strnlen(begin, entry_bytes));
    }
    at += entry_header + entry_bytes;
  }
  if (text.empty()) {
    if (image.is_compressed)
      std::fprintf(stderr, "ptx-device: this program's PTX is compressed: build it with nvcc --no-compress\n");
    return;
  }
  try {
    image.module = std::make_unique<Module>(std::move(text));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ptx-device: %s\n", error.what());
    std::abort();
  }
}

void lay_out(Image& image) {
  if (image.laid_out || image.module == nullptr) return;
  image.laid_out = true;
  Memory& memory = Memory::get();
  for (const Variable& variable : image.module->globals) {
    void* pointer = memory.allocate(std::max<std::size_t>(variable.bytes, 1), MemoryKind::kVariable, 0);
    bool is_device = false;
    char* bytes = memory.host_of(pointer, variable.bytes, is_device);
    std::memset(bytes, 0, variable.bytes);
    memory.mark_written(pointer, variable.bytes);
    if (!variable.init.empty()) std::memcpy(bytes, variable.init.data(), variable.init.size());
    image.variables[variable.name] = reinterpret_cast<std::uint64_t>(pointer);
  }
  for (const Variable& variable : image.module->globals)
    for (const auto& [offset, name] : variable.addresses) {
      bool is_device = false;
      char* bytes = memory.host_of(reinterpret_cast<void*>(image.variables[variable.name]),
                                   variable.bytes, is_device);
      std::uint64_t value;
      std::memcpy(&value, bytes + offset, 8);
      value += image.variables[name];
      std::memcpy(bytes + offset, &value, 8);
    }
}

/// cudaSuccess where the entry can run here.
cudaError_t load(Entry& entry) {
  const std::lock_guard lock(state().mutex);
  if (entry.kernel != nullptr) return cudaSuccess;
  Image& image = *entry.image;
  open_image(image);
  if (image.module == nullptr) return cudaErrorNoKernelImageForDevice;
  lay_out(image);
  if (!image.module->has(entry.name)) return cudaErrorInvalidDeviceFunction;
  try {
    entry.kernel = decode(image.module->function(entry.name), *image.module, image.variables);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ptx-device: %s\n", error.what());
    std::abort();
  }
  return cudaSuccess;
}

Entry* entry_of(const void* function) {
  const std::lock_guard lock(state().mutex);
  auto found = state().entries.find(function);
  if (found != state().entries.end()) return found->second.get();
  for (auto& [host, entry] : state().entries)
    if (entry.get() == function) return entry.get();  // a cudaKernel_t
  return nullptr;
}

// ---- Streams -------------------------------------------------------------------------------------

Stream* null_stream(int device) {
  const std::lock_guard lock(state().mutex);
  Stream*& stream = state().null_streams[device];
  if (stream == nullptr) stream = new Stream(device, false);
  return stream;
}
/// cudaStreamLegacy and null are the same; cudaStreamPerThread is not known here.
bool is_null(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }
Stream* stream_of(cudaStream_t stream) {
  return is_null(stream) ? null_stream(current_device) : reinterpret_cast<Stream*>(stream);
}
bool known(cudaStream_t stream) {
  if (is_null(stream)) return true;
  const std::lock_guard lock(state().mutex);
  return state().streams.count(reinterpret_cast<Stream*>(stream)) != 0;
}

/// Whether a call that waits or allocates is forbidden just now, as a capture is under way.
bool is_forbidden() {
  const std::lock_guard lock(capture_mutex());
  for (const auto& [id, capture] : state().captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool counts = (capture->mode == cudaStreamCaptureModeGlobal &&
                         capture_mode == cudaStreamCaptureModeGlobal) ||
                        (own && capture->mode != cudaStreamCaptureModeRelaxed &&
                         capture_mode != cudaStreamCaptureModeRelaxed);
    if (counts) {
      capture->broken = true;
      return true;
    }
  }
  return false;
}
#define PTX_UNSAFE \
  if (is_forbidden()) return done(cudaErrorStreamCaptureUnsupported)

/// Legacy: the default stream waits for all that block on it, and they for it.
cudaError_t queue(cudaStream_t handle, Work work, bool waits = false) {
  if (!known(handle)) return cudaErrorInvalidResourceHandle;
  Stream* stream = stream_of(handle);
  std::vector<std::shared_ptr<Mark>> marks;
  {
    const std::lock_guard lock(capture_mutex());
    if (stream->capture == nullptr) {
      const std::lock_guard state_lock(state().mutex);
      if (is_null(handle)) {
        for (Stream* other : state().streams) {
          if (!other->blocks || other->device != stream->device) continue;
          if (other->capture != nullptr) {
            other->capture->broken = true;
            return cudaErrorStreamCaptureImplicit;
          }
          if (!other->idle()) marks.push_back(other->mark());
        }
      } else if (stream->blocks) {
        Stream* null = null_stream(stream->device);
        if (!null->idle()) marks.push_back(null->mark());
      }
    } else if (stream->capture->broken) {
      return cudaErrorStreamCaptureInvalidated;
    }
    for (auto& mark : marks) stream->wait_for(std::move(mark));
    stream->add([work = std::move(work)] {
      if (sticky() == cudaSuccess) work();
    }, waits);
  }
  return cudaSuccess;
}

cudaError_t synchronize(Stream* stream) {
  {
    const std::lock_guard lock(capture_mutex());
    if (stream->capture != nullptr) {
      stream->capture->broken = true;
      return cudaErrorStreamCaptureUnsupported;
    }
  }
  stream->synchronize();
  return sticky();
}

// ---- Launches ------------------------------------------------------------------------------------

cudaError_t status_of(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kNone: return cudaSuccess;
    case FaultKind::kAddress: return cudaErrorIllegalAddress;
    case FaultKind::kMisaligned: return cudaErrorMisalignedAddress;
    case FaultKind::kInstruction: return cudaErrorIllegalInstruction;
    case FaultKind::kAssert: return cudaErrorAssert;
    case FaultKind::kFailure: return cudaErrorLaunchFailure;
  }
  return cudaErrorLaunchFailure;
}

void run_entry(Entry& entry, const Launch& plan) {
  Launch launch;
  launch.kernel = plan.kernel;
  std::copy(plan.grid, plan.grid + 3, launch.grid);
  std::copy(plan.block, plan.block + 3, launch.block);
  launch.dynamic_shared = plan.dynamic_shared;
  launch.params = plan.params;
  launch.number = ++state().launch_count;
  const auto begin = std::chrono::steady_clock::now();
  try {
    run(launch);
  } catch (const Fault& fault) {
    launch.fault = fault;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  {
    const std::lock_guard lock(state().mutex);
    ++entry.launches;
    entry.executed += launch.executed;
    entry.executed_lanes += launch.executed_lanes;
    entry.seconds += seconds;
  }
  if (settings().log > 0)
    std::fprintf(stderr, "ptx-device: %s <<<%u, %u>>>: %.3f ms, %llu instructions of warps\n",
                 launch.kernel->name.c_str(), launch.grid[0], launch.block[0], 1e3 * seconds,
                 static_cast<unsigned long long>(launch.executed));
  if (launch.fault.kind == FaultKind::kNone) return;
  std::fprintf(stderr, "%s\n", launch.fault.text.c_str());
  state().sticky = status_of(launch.fault);
}

cudaError_t launch(Entry* entry, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                   cudaStream_t stream) {
  if (entry == nullptr) return cudaErrorInvalidDeviceFunction;
  if (const cudaError_t status = load(*entry); status != cudaSuccess) return status;
  const Kernel& kernel = *entry->kernel;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaErrorInvalidConfiguration;
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads > 1024 || grid.x > 0x7fffffffu ||
      grid.y > 65535 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (kernel.max_threads != 0 && threads > kernel.max_threads) return cudaErrorInvalidValue;
  if (shared > entry->most_dynamic || shared + kernel.shared_bytes > 227 * 1024) return cudaErrorInvalidValue;
  auto plan = std::make_shared<Launch>();
  plan->kernel = &kernel;
  plan->grid[0] = grid.x, plan->grid[1] = grid.y, plan->grid[2] = grid.z;
  plan->block[0] = block.x, plan->block[1] = block.y, plan->block[2] = block.z;
  plan->dynamic_shared = shared;
  plan->params.resize(kernel.param_bytes);
  for (std::size_t i = 0; i < kernel.params.size(); ++i)
    std::memcpy(plan->params.data() + kernel.params[i].offset, arguments[i], kernel.params[i].bytes);
  return queue(stream, [entry, plan] { run_entry(*entry, *plan); });
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

// ---- Copies --------------------------------------------------------------------------------------

enum class Place { kPageable, kPinned, kDevice, kBad };

Place place_of(const void* pointer, std::size_t bytes) {
  bool is_device = false;
  const char* host = Memory::get().host_of(pointer, bytes, is_device);
  if (is_device) return host == nullptr ? Place::kBad : Place::kDevice;
  return Memory::get().find(reinterpret_cast<std::uint64_t>(pointer)) == nullptr ? Place::kPageable
                                                                                 : Place::kPinned;
}
void copy_now(void* to, const void* from, std::size_t bytes) {
  Memory& memory = Memory::get();
  bool to_device = false, from_device = false;
  char* target = memory.host_of(to, bytes, to_device);
  char* source = memory.host_of(from, bytes, from_device);
  if (target == nullptr || source == nullptr) {
    std::fprintf(stderr, "ptx-device: a copy of %zu bytes touches no allocation: to %p (%s), from %p (%s)\n",
                 bytes, to, memory.describe(reinterpret_cast<std::uint64_t>(to)).c_str(), from,
                 memory.describe(reinterpret_cast<std::uint64_t>(from)).c_str());
    state().sticky = cudaErrorIllegalAddress;
    return;
  }
  std::memmove(target, source, bytes);
  memory.copy_marks(to, from, bytes);
}
bool fits(cudaMemcpyKind kind, Place to, Place from) {
  const bool to_device = to == Place::kDevice, from_device = from == Place::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return !from_device && to != Place::kPageable;
    case cudaMemcpyDeviceToHost: return !to_device && from != Place::kPageable;
    case cudaMemcpyDeviceToDevice: return to != Place::kPageable && from != Place::kPageable;
    default: return true;
  }
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream, bool waits) {
  if (bytes == 0) return cudaSuccess;
  const Place target = place_of(to, bytes), source = place_of(from, bytes);
  if (target == Place::kBad || source == Place::kBad || !fits(kind, target, source)) {
    std::fprintf(stderr, "ptx-device: a copy of %zu bytes to %p from %p (kind %d) is refused: %s / %s\n", bytes, to,
                 from, static_cast<int>(kind), Memory::get().describe(reinterpret_cast<std::uint64_t>(to)).c_str(),
                 Memory::get().describe(reinterpret_cast<std::uint64_t>(from)).c_str());
    return cudaErrorInvalidValue;
  }
  const bool captured = !is_null(stream) && [&] {
    const std::lock_guard lock(capture_mutex());
    return stream_of(stream)->capture != nullptr;
  }();
  if (source == Place::kPageable && !captured) {
    auto bytes_of = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                        static_cast<const char*>(from) + bytes);
    const cudaError_t status =
        queue(stream, [=] { copy_now(to, bytes_of->data(), bytes_of->size()); });
    if (status != cudaSuccess) return status;
  } else {
    const cudaError_t status = queue(stream, [=] { copy_now(to, from, bytes); });
    if (status != cudaSuccess) return status;
  }
  if (captured) return cudaSuccess;
  if (waits || target == Place::kPageable) return synchronize(stream_of(stream));
  return cudaSuccess;
}

cudaError_t fill(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const Place place = place_of(pointer, bytes);
  if (place == Place::kBad || place == Place::kPageable) return cudaErrorInvalidValue;
  return queue(stream, [=] {
    bool is_device = false;
    char* host = Memory::get().host_of(pointer, bytes, is_device);
    if (host == nullptr) {
      std::fprintf(stderr, "ptx-device: memset of freed memory\n");
      state().sticky = cudaErrorIllegalAddress;
      return;
    }
    std::memset(host, value, bytes);
    Memory::get().mark_written(pointer, bytes);
  });
}

// ---- Events and graphs ---------------------------------------------------------------------------

struct Event {
  unsigned flags = 0;
  std::shared_ptr<Mark> mark;
  Capture* capture = nullptr;
  std::uint64_t capture_id = 0;
  std::vector<std::size_t> frontier;
};
struct Executable {
  std::shared_ptr<Graph> graph;
};

bool alive(const Event& event) {
  return event.capture != nullptr && state().captures.count(event.capture_id) != 0;
}

struct AtExit {
  ~AtExit() {
    if (settings().statistics) {
      std::vector<const Entry*> entries;
      for (const auto& [host, entry] : state().entries)
        if (entry->launches != 0) entries.push_back(entry.get());
      std::sort(entries.begin(), entries.end(),
                [](const Entry* a, const Entry* b) { return a->seconds > b->seconds; });
      std::fprintf(stderr, "ptx-device: seconds launches Minstr(warp) lanes/instr kernel\n");
      for (const Entry* entry : entries)
        std::fprintf(stderr, "ptx-device: %7.3f %8llu %12.3f %11.1f %s\n", entry->seconds,
                     static_cast<unsigned long long>(entry->launches), 1e-6 * static_cast<double>(entry->executed),
                     static_cast<double>(entry->executed_lanes) / static_cast<double>(std::max<std::uint64_t>(entry->executed, 1)),
                     entry->kernel->name.c_str());
      std::size_t loaded = 0;
      for (const auto& [host, entry] : state().entries) loaded += entry->launches != 0;
      std::fprintf(stderr, "ptx-device: %zu of %zu kernels were launched\n", loaded, state().entries.size());
    }
    if (complaints() != 0)
      std::fprintf(stderr, "ptx-device: %zu complaints (see above)\n", complaints());
  }
} at_exit;

}  // namespace

// For stand-ins of other libraries, such as NCCL's.
bool queue_on(void* stream, std::function<void()> work, bool waits) {
  return queue(static_cast<cudaStream_t>(stream), std::move(work), waits) == cudaSuccess;
}
char* bytes_at(const void* pointer, std::size_t bytes) {
  if (place_of(pointer, bytes) == Place::kPageable) return nullptr;
  bool is_device = false;
  return Memory::get().host_of(pointer, bytes, is_device);
}
void mark_written(const void* pointer, std::size_t bytes) { Memory::get().mark_written(pointer, bytes); }

}  // namespace ptx

using namespace ptx;

extern "C" {

// ---- What nvcc's code calls ----------------------------------------------------------------------

void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const void* data;
    void* more;
  };
  auto image = std::make_unique<Image>();
  const auto* given = static_cast<const Wrapper*>(wrapper);
  if (given->magic == 0x466243b1) image->fatbin = static_cast<const char*>(given->data);
  image->handle = image.get();
  const std::lock_guard lock(state().mutex);
  state().images.push_back(std::move(image));
  return &state().images.back()->handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void** image, const char* host, char*, const char* name, int, void*, void*, void*,
                            void*, int*) {
  const std::lock_guard lock(state().mutex);
  auto entry = std::make_unique<Entry>();
  entry->image = static_cast<Image*>(*image);
  entry->name = name;
  state().entries[host] = std::move(entry);
}
void __cudaRegisterVar(void** image, char* host, char*, const char* name, int, std::size_t bytes, int constant,
                       int) {
  const std::lock_guard lock(state().mutex);
  static_cast<Image*>(*image)->host_variables.push_back({host, name, bytes, constant != 0});
}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, std::size_t, int, int) {
  std::fprintf(stderr, "ptx-device: __managed__ variables are not done here\n");
  std::abort();
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream) {
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
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  Entry* entry = entry_of(function);
  *kernel = reinterpret_cast<cudaKernel_t>(entry);
  return entry == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t stream) {
  PTX_API("__cudaLaunchKernel");
  return done(launch(reinterpret_cast<Entry*>(kernel), grid, block, arguments, shared, stream));
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
  PTX_API("cudaLaunchKernel");
  return done(launch(entry_of(function), grid, block, arguments, shared, stream));
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  PTX_API("cudaLaunchKernelExC");
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      const auto& cluster = config->attrs[i].val.clusterDim;
      if (cluster.x * cluster.y * cluster.z > 1) return done(cudaErrorNotSupported);
    }
  return done(launch(entry_of(function), config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                     config->stream));
}

// ---- Functions -----------------------------------------------------------------------------------

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  PTX_API("cudaFuncGetAttributes");
  Entry* entry = entry_of(function);
  if (entry == nullptr) return done(cudaErrorInvalidDeviceFunction);
  if (const cudaError_t status = load(*entry); status != cudaSuccess) return done(status);
  *attributes = {};
  const Kernel& kernel = *entry->kernel;
  attributes->sharedSizeBytes = kernel.shared_bytes;
  attributes->localSizeBytes = kernel.local_bytes;
  attributes->maxThreadsPerBlock = kernel.max_threads != 0 ? static_cast<int>(kernel.max_threads) : 1024;
  attributes->numRegs = std::clamp(static_cast<int>(kernel.live_bytes / 4), 16, 128);
  attributes->ptxVersion = static_cast<int>(entry->image->module->target);
  attributes->binaryVersion = settings().major * 10 + settings().minor;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(entry->most_dynamic);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute which, int value) {
  PTX_API("cudaFuncSetAttribute");
  Entry* entry = entry_of(function);
  if (entry == nullptr) return done(cudaErrorInvalidDeviceFunction);
  if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || value > 227 * 1024) return done(cudaErrorInvalidValue);
    entry->most_dynamic = static_cast<std::size_t>(value);
  }
  return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   std::size_t shared, unsigned) {
  PTX_API("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  Entry* entry = entry_of(function);
  if (entry == nullptr) return done(cudaErrorInvalidDeviceFunction);
  if (const cudaError_t status = load(*entry); status != cudaSuccess) return done(status);
  const Kernel& kernel = *entry->kernel;
  int most = std::min(2048 / std::max(threads, 1), 32);
  // How many registers ptxas would take is not known: what the kernel asks for is what it gets.
  if (kernel.min_blocks != 0) most = std::min(most, static_cast<int>(kernel.min_blocks));
  const std::size_t each = shared + kernel.shared_bytes + 1024;
  most = std::min(most, static_cast<int>(228 * 1024 / each));
  *blocks = kernel.max_threads != 0 && threads > static_cast<int>(kernel.max_threads) ? 0 : most;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          std::size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

// ---- Devices -------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().devices;
  return done(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= settings().devices) return done(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= settings().devices) return done(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "PTX device (interpreted)");
  properties->totalGlobalMem = Memory::get().total();
  properties->sharedMemPerBlock = 48 * 1024;
  properties->sharedMemPerBlockOptin = 227 * 1024;
  properties->sharedMemPerMultiprocessor = 228 * 1024;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->major = settings().major;
  properties->minor = settings().minor;
  properties->multiProcessorCount = settings().multiprocessors;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->l2CacheSize = 50 << 20;
  properties->memoryBusWidth = 5120;
  properties->managedMemory = properties->concurrentManagedAccess = 1;
  properties->unifiedAddressing = properties->canMapHostMemory = 1;
  properties->asyncEngineCount = 3;
  properties->concurrentKernels = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (device < 0 || device >= settings().devices) return done(cudaErrorInvalidDevice);
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor: *value = settings().major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = settings().minor; break;
    case cudaDevAttrMultiProcessorCount: *value = settings().multiprocessors; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCanMapHostMemory: *value = 1; break;
    case cudaDevAttrClockRate: *value = 1755000; break;
    case cudaDevAttrMemoryClockRate: *value = 2619000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
    case cudaDevAttrPageableMemoryAccess:
    default: *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  PTX_API("cudaDeviceSynchronize");
  PTX_UNSAFE;
  {
    const std::lock_guard lock(capture_mutex());
    for (auto& [id, capture] : state().captures) {
      capture->broken = true;
      return done(cudaErrorStreamCaptureUnsupported);
    }
  }
  wait_for_device(current_device);
  return done(sticky());
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  PTX_API("cudaMemGetInfo");
  *total = Memory::get().total();
  *free_bytes = *total - Memory::get().used();
  return cudaSuccess;
}

// ---- Errors --------------------------------------------------------------------------------------

cudaError_t cudaGetLastError() {
  const cudaError_t error = sticky() != cudaSuccess ? sticky() : last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return sticky() != cudaSuccess ? sticky() : last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local std::string text;
  text = "cudaError" + std::to_string(static_cast<int>(error));
  return text.c_str();
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDeviceFunction: return "invalid device function";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorMisalignedAddress: return "misaligned address";
    case cudaErrorIllegalInstruction: return "an illegal instruction was encountered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
    case cudaErrorStreamCaptureImplicit: return "operation would make the legacy stream depend on a capturing blocking stream";
    case cudaErrorStreamCaptureWrongThread: return "attempt to terminate a thread-local capture sequence from another thread";
    case cudaErrorIllegalState: return "the operation cannot be performed in the present state";
    default: return cudaGetErrorName(error);
  }
}

// ---- Memory --------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  PTX_API("cudaMalloc");
  PTX_UNSAFE;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = Memory::get().allocate(bytes, MemoryKind::kDevice, current_device);
  return done(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaMallocManaged(void** pointer, std::size_t bytes, unsigned) {
  PTX_API("cudaMallocManaged");
  PTX_UNSAFE;
  if (bytes == 0) return done(cudaErrorInvalidValue);
  *pointer = Memory::get().allocate(bytes, MemoryKind::kManaged, current_device);
  return done(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  PTX_API("cudaFree");
  PTX_UNSAFE;
  wait_for_device(current_device);
  return done(Memory::get().free(pointer, MemoryKind::kDevice) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t) {
  PTX_API("cudaMallocAsync");
  *pointer = Memory::get().allocate(std::max<std::size_t>(bytes, 1), MemoryKind::kDevice, current_device);
  return done(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  PTX_API("cudaFreeAsync");
  return done(queue(stream, [=] { Memory::get().free(pointer, MemoryKind::kDevice); }));
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  PTX_API("cudaHostAlloc");
  PTX_UNSAFE;
  *pointer = Memory::get().allocate(bytes, MemoryKind::kPinned, current_device);
  return done(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  PTX_API("cudaFreeHost");
  PTX_UNSAFE;
  wait_for_device(current_device);
  return done(Memory::get().free(pointer, MemoryKind::kPinned) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  PTX_API("cudaHostRegister");
  Memory::get().add_host(pointer, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  return done(Memory::get().remove_host(pointer) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  PTX_API("cudaPointerGetAttributes");
  *attributes = {};
  const Allocation* found = Memory::get().find(reinterpret_cast<std::uint64_t>(pointer));
  if (found == nullptr) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  attributes->type = found->kind == MemoryKind::kPinned    ? cudaMemoryTypeHost
                     : found->kind == MemoryKind::kManaged ? cudaMemoryTypeManaged
                                                           : cudaMemoryTypeDevice;
  attributes->device = found->device;
  attributes->devicePointer = const_cast<void*>(pointer);
  if (found->delta == 0) attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  PTX_API("cudaMemcpy");
  PTX_UNSAFE;
  return done(copy(to, from, bytes, kind, nullptr, true));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  PTX_API("cudaMemcpyAsync");
  return done(copy(to, from, bytes, kind, stream, false));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  PTX_API("cudaMemcpyPeerAsync");
  return done(copy(to, from, bytes, cudaMemcpyDefault, stream, false));
}
cudaError_t cudaMemset(void* pointer, int value, std::size_t bytes) {
  PTX_API("cudaMemset");
  PTX_UNSAFE;
  return done(fill(pointer, value, bytes, nullptr));
}
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  PTX_API("cudaMemsetAsync");
  return done(fill(pointer, value, bytes, stream));
}
cudaError_t cudaMemPrefetchAsync(const void*, std::size_t, cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
static cudaError_t symbol_address(void** pointer, const void* symbol) {
  const std::lock_guard lock(state().mutex);
  for (auto& image : state().images)
    for (const HostVariable& variable : image->host_variables) {
      if (variable.host != symbol) continue;
      open_image(*image);
      lay_out(*image);
      auto found = image->variables.find(variable.name);
      if (found == image->variables.end()) return cudaErrorInvalidSymbol;
      *pointer = reinterpret_cast<void*>(found->second);
      return cudaSuccess;
    }
  return cudaErrorInvalidSymbol;
}
cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) { return done(symbol_address(pointer, symbol)); }
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes, std::size_t offset,
                               cudaMemcpyKind kind) {
  void* pointer = nullptr;
  if (const cudaError_t status = symbol_address(&pointer, symbol); status != cudaSuccess) return done(status);
  return cudaMemcpy(static_cast<char*>(pointer) + offset, from, bytes, kind);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, std::size_t bytes, std::size_t offset,
                                 cudaMemcpyKind kind) {
  void* pointer = nullptr;
  if (const cudaError_t status = symbol_address(&pointer, symbol); status != cudaSuccess) return done(status);
  return cudaMemcpy(to, static_cast<char*>(pointer) + offset, bytes, kind);
}

// ---- Streams -------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  PTX_API("cudaStreamCreate");
  auto* made = new Stream(current_device, (flags & cudaStreamNonBlocking) == 0);
  const std::lock_guard lock(state().mutex);
  state().streams.insert(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (is_null(stream) || !known(stream)) return done(cudaErrorInvalidResourceHandle);
  Stream* made = stream_of(stream);
  {
    const std::lock_guard lock(capture_mutex());
    if (made->capture != nullptr) made->capture->broken = true;
    const std::lock_guard state_lock(state().mutex);
    state().streams.erase(made);
  }
  made->close();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  PTX_API("cudaStreamSynchronize");
  if (!known(stream)) return done(cudaErrorInvalidResourceHandle);
  PTX_UNSAFE;
  return done(synchronize(stream_of(stream)));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  PTX_API("cudaStreamQuery");
  if (!known(stream)) return done(cudaErrorInvalidResourceHandle);
  PTX_UNSAFE;
  return stream_of(stream)->idle() ? done(sticky()) : cudaErrorNotReady;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  PTX_API("cudaStreamGetDevice");
  if (!known(stream)) return done(cudaErrorInvalidResourceHandle);
  *device = stream_of(stream)->device;
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  *flags = is_null(stream) || stream_of(stream)->blocks ? 0 : cudaStreamNonBlocking;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  PTX_API("cudaLaunchHostFunc");
  return done(queue(stream, [=] { function(data); }));
}

// ---- Events --------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  PTX_API("cudaEventCreate");
  auto* made = new Event;
  made->flags = flags;
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
  PTX_API("cudaEventRecord");
  if (!known(stream)) return done(cudaErrorInvalidResourceHandle);
  auto* event = reinterpret_cast<Event*>(handle);
  const std::lock_guard lock(capture_mutex());
  Stream* made = stream_of(stream);
  if (made->capture != nullptr) {
    if (made->capture->broken) return done(cudaErrorStreamCaptureInvalidated);
    event->capture = made->capture;
    event->capture_id = made->capture->id;
    event->frontier = made->frontier;
    return cudaSuccess;
  }
  event->capture = nullptr;
  auto mark = std::make_shared<Mark>();
  event->mark = mark;
  // Also passed where the device is broken, so that nobody waits for ever.
  cudaError_t status = cudaSuccess;
  if (is_null(stream)) status = queue(stream, [] {});
  made->add([mark] { mark->pass(); });
  return done(status);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  PTX_API("cudaStreamWaitEvent");
  if (!known(stream)) return done(cudaErrorInvalidResourceHandle);
  auto* event = reinterpret_cast<Event*>(handle);
  const std::lock_guard lock(capture_mutex());
  Stream* made = stream_of(stream);
  if (event->capture != nullptr) {
    if (!alive(*event)) return done(cudaErrorStreamCaptureIsolation);
    if (event->capture->broken) return done(cudaErrorStreamCaptureInvalidated);
    if (is_null(stream)) {
      event->capture->broken = true;
      return done(cudaErrorStreamCaptureImplicit);
    }
    if (made->capture == nullptr) {
      made->capture = event->capture;
      made->capture->streams.insert(made);
      made->frontier.clear();
    } else if (made->capture != event->capture) {
      made->capture->broken = event->capture->broken = true;
      return done(cudaErrorStreamCaptureMerge);
    }
    for (std::size_t node : event->frontier)
      if (std::find(made->frontier.begin(), made->frontier.end(), node) == made->frontier.end())
        made->frontier.push_back(node);
    return cudaSuccess;
  }
  if (made->capture != nullptr) {
    if (event->mark == nullptr) return cudaSuccess;
    made->capture->broken = true;
    return done(cudaErrorStreamCaptureIsolation);
  }
  if (event->mark != nullptr) made->wait_for(event->mark);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  PTX_API("cudaEventQuery");
  auto* event = reinterpret_cast<Event*>(handle);
  if (event->capture != nullptr && alive(*event)) {
    event->capture->broken = true;
    return done(cudaErrorCapturedEvent);
  }
  PTX_UNSAFE;
  if (event->mark != nullptr && !event->mark->passed()) return cudaErrorNotReady;
  return done(sticky());
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  PTX_API("cudaEventSynchronize");
  auto* event = reinterpret_cast<Event*>(handle);
  if (event->capture != nullptr && alive(*event)) {
    event->capture->broken = true;
    return done(cudaErrorCapturedEvent);
  }
  PTX_UNSAFE;
  const auto mark = event->mark;
  if (mark != nullptr) mark->wait();
  return done(sticky());
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  PTX_API("cudaEventElapsedTime");
  auto *first = reinterpret_cast<Event*>(begin), *last = reinterpret_cast<Event*>(end);
  if (((first->flags | last->flags) & cudaEventDisableTiming) != 0 || first->mark == nullptr || last->mark == nullptr)
    return done(cudaErrorInvalidResourceHandle);
  if (!first->mark->passed() || !last->mark->passed()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(last->mark->time() - first->mark->time()).count();
  return cudaSuccess;
}

// ---- Captures and graphs -------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  PTX_API("cudaStreamBeginCapture");
  if (is_null(stream)) return done(cudaErrorStreamCaptureUnsupported);
  if (!known(stream)) return done(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(capture_mutex());
  Stream* made = stream_of(stream);
  if (made->capture != nullptr) return done(cudaErrorIllegalState);
  auto capture = std::make_unique<Capture>();
  capture->id = ++state().capture_count;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = made;
  capture->streams.insert(made);
  made->capture = capture.get();
  made->frontier.clear();
  state().captures[capture->id] = std::move(capture);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  PTX_API("cudaStreamEndCapture");
  *graph = nullptr;
  if (is_null(stream) || !known(stream)) return done(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(capture_mutex());
  Stream* made = stream_of(stream);
  Capture* capture = made->capture;
  if (capture == nullptr) return done(cudaErrorIllegalState);
  if (capture->origin != made) return done(cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return done(cudaErrorStreamCaptureWrongThread);
  // All that was captured must come before what this stream would do next.
  const Graph& captured = *capture->graph;
  std::vector<char> reached(captured.nodes.size(), 0);
  std::vector<std::size_t> open = made->frontier;
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (reached[node] != 0) continue;
    reached[node] = 1;
    open.insert(open.end(), captured.nodes[node].before.begin(), captured.nodes[node].before.end());
  }
  const bool joined = std::find(reached.begin(), reached.end(), 0) == reached.end();
  const bool broken = capture->broken;
  auto kept = capture->graph;
  {
    const std::lock_guard state_lock(state().mutex);
    for (Stream* other : capture->streams)
      if (other == made || state().streams.count(other) != 0) {
        other->capture = nullptr;
        other->frontier.clear();
      }
  }
  state().captures.erase(capture->id);
  if (broken) return done(cudaErrorStreamCaptureInvalidated);
  if (!joined) return done(cudaErrorStreamCaptureUnjoined);
  *graph = reinterpret_cast<cudaGraph_t>(new Executable{kept});
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (!known(stream)) return done(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(capture_mutex());
  const Capture* capture = is_null(stream) ? nullptr : stream_of(stream)->capture;
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->broken  ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     std::size_t* count) {
  PTX_API("cudaStreamGetCaptureInfo");
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  const cudaError_t known_status = cudaStreamIsCapturing(stream, status);
  if (known_status != cudaSuccess) return known_status;
  const std::lock_guard lock(capture_mutex());
  if (id != nullptr && *status != cudaStreamCaptureStatusNone) *id = stream_of(stream)->capture->id;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = static_cast<cudaStreamCaptureMode>(before);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  PTX_API("cudaGraphInstantiate");
  *executable = reinterpret_cast<cudaGraphExec_t>(new Executable{reinterpret_cast<Executable*>(graph)->graph});
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  PTX_API("cudaGraphLaunch");
  auto graph = reinterpret_cast<Executable*>(executable)->graph;
  const std::uint64_t random = settings().seed * 77 + ++state().launch_count;
  return done(queue(stream, [graph, random] { graph->run(random); }));
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (nodes != nullptr) return done(cudaErrorNotSupported);
  *count = reinterpret_cast<Executable*>(graph)->graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Executable*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<Executable*>(executable);
  return cudaSuccess;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
