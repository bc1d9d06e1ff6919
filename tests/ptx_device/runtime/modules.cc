// See modules.h.
#include "tests/ptx_device/runtime/modules.h"

#include "tests/ptx_device/runtime/fat_binary.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

namespace ptx {
namespace {

struct Modules {
  std::recursive_mutex mutex;
  std::vector<std::unique_ptr<Image>> images;
  std::unordered_map<const void*, std::unique_ptr<Entry>> entries;  // by host function
};
Modules& modules() {
  static auto* modules = new Modules;
  return *modules;
}

[[noreturn]] void give_up(const std::exception& error) {
  std::fprintf(stderr, "ptx-device: %s\n", error.what());
  std::abort();
}

void open_image(Image& image) {
  if (image.module != nullptr || image.fat_binary == nullptr) return;
  const Settings& device = settings();
  std::string text = best_ptx(image.fat_binary, 10 * device.major + device.minor);
  if (text.empty()) return;
  try {
    image.module = std::make_unique<Module>(std::move(text));
  } catch (const std::exception& error) {
    give_up(error);
  }
}

char* bytes_of(std::uint64_t address, std::size_t bytes) {
  bool is_device = false;
  return Memory::get().host_of(reinterpret_cast<void*>(address), bytes, is_device);
}

std::uint64_t make_variable(const Variable& variable) {
  Memory& memory = Memory::get();
  const std::size_t room = std::max<std::size_t>(variable.bytes, 1);
  void* pointer = memory.allocate(room, MemoryKind::kVariable, 0);
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  char* bytes = bytes_of(address, variable.bytes);
  std::memset(bytes, 0, variable.bytes);
  memory.mark(pointer, variable.bytes, true);
  if (!variable.init.empty()) std::memcpy(bytes, variable.init.data(), variable.init.size());
  return address;
}

/// Initializes variables containing addresses of other variables.
void set_addresses(const Variable& variable, Variables& variables) {
  for (const auto& [offset, name] : variable.addresses) {
    char* bytes = bytes_of(variables[variable.name], variable.bytes) + offset;
    std::uint64_t value;
    std::memcpy(&value, bytes, sizeof value);
    value += variables[name];
    std::memcpy(bytes, &value, sizeof value);
  }
}

void lay_out(Image& image) {
  if (image.is_laid_out || image.module == nullptr) return;
  image.is_laid_out = true;
  for (const Variable& variable : image.module->globals)
    image.variables[variable.name] = make_variable(variable);
  for (const Variable& variable : image.module->globals) set_addresses(variable, image.variables);
}

/// Returns null if the program did not register the symbol.
Image* image_of(const void* symbol, std::string& name) {
  for (auto& image : modules().images)
    for (const HostVariable& variable : image->host_variables)
      if (variable.host == symbol) {
        name = variable.name;
        return image.get();
      }
  return nullptr;
}

}  // namespace

Image* add_image(const void* wrapper) {
  struct Wrapper {
    int magic, version;
    const void* data;
    void* more;
  };
  auto image = std::make_unique<Image>();
  const auto* given = static_cast<const Wrapper*>(wrapper);
  if (given->magic == 0x466243b1) image->fat_binary = static_cast<const char*>(given->data);
  image->handle = image.get();
  const std::lock_guard lock(modules().mutex);
  modules().images.push_back(std::move(image));
  return modules().images.back().get();
}

void add_entry(Image& image, const void* host, const char* name) {
  auto entry = std::make_unique<Entry>();
  entry->image = &image;
  entry->name = name;
  const std::lock_guard lock(modules().mutex);
  modules().entries[host] = std::move(entry);
}

void add_variable(Image& image, const void* host, const char* name) {
  const std::lock_guard lock(modules().mutex);
  image.host_variables.push_back({host, name});
}

Entry* entry_of(const void* function) {
  const std::lock_guard lock(modules().mutex);
  const auto found = modules().entries.find(function);
  if (found != modules().entries.end()) return found->second.get();
  for (auto& [host, entry] : modules().entries)
    if (entry.get() == function) return entry.get();  // a cudaKernel_t
  return nullptr;
}

std::vector<Entry*> all_entries() {
  const std::lock_guard lock(modules().mutex);
  std::vector<Entry*> all;
  for (auto& [host, entry] : modules().entries) all.push_back(entry.get());
  return all;
}

cudaError_t load(Entry& entry) {
  const std::lock_guard lock(modules().mutex);
  if (entry.kernel != nullptr) return cudaSuccess;
  Image& image = *entry.image;
  open_image(image);
  if (image.module == nullptr) return cudaErrorNoKernelImageForDevice;
  lay_out(image);
  if (!image.module->has(entry.name)) return cudaErrorInvalidDeviceFunction;
  try {
    entry.kernel = decode(image.module->function(entry.name), *image.module, image.variables);
  } catch (const std::exception& error) {
    give_up(error);
  }
  return cudaSuccess;
}

cudaError_t load(Entry* entry) {
  return entry == nullptr ? cudaErrorInvalidDeviceFunction : load(*entry);
}

cudaError_t symbol_address(void** pointer, const void* symbol) {
  const std::lock_guard lock(modules().mutex);
  std::string name;
  Image* image = image_of(symbol, name);
  if (image == nullptr) return cudaErrorInvalidSymbol;
  open_image(*image);
  lay_out(*image);
  const auto found = image->variables.find(name);
  if (found == image->variables.end()) return cudaErrorInvalidSymbol;
  *pointer = reinterpret_cast<void*>(found->second);
  return cudaSuccess;
}

}  // namespace ptx
