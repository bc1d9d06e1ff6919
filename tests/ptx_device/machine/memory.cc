// See memory.h.
#include "tests/ptx_device/machine/memory.h"

#include "tests/ptx_device/settings.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>

namespace ptx {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr unsigned kSpaceBits = 38;  // ThreadSanitizer leaves 1.5 TiB of addresses
#else
constexpr unsigned kSpaceBits = 41;
#endif
constexpr std::uint64_t kSpace = std::uint64_t{1} << kSpaceBits;
constexpr std::size_t kAllocationAlignment = 512, kRedZone = 4096;
constexpr std::size_t kMostPoisoned = std::size_t{64} << 20;

/// Reserves addresses, backed by a file if given.
char* reserve(int protection, int file = -1) {
  const int sharing = file == -1 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(nullptr, kSpace, protection, sharing | MAP_NORESERVE, file, 0);
  if (memory == MAP_FAILED) {
    std::perror("ptx-device: reserving addresses");
    std::abort();
  }
  return static_cast<char*>(memory);
}

/// Memory shared by two address ranges.
int make_file() {
  const int file = memfd_create("ptx-device", 0);
  if (file == -1 || ftruncate(file, static_cast<off_t>(kSpace)) != 0) {
    std::perror("ptx-device: making memory that the host reaches too");
    std::abort();
  }
  return file;
}

char* pointer_at(std::uint64_t address) { return reinterpret_cast<char*>(address); }

/// The distance from `address` to new marks. All marks are set to written.
std::int64_t new_marks(std::uint64_t address, std::size_t bytes) {
  void* marks = std::malloc(bytes == 0 ? 1 : bytes);
  if (marks == nullptr) return 0;
  std::memset(marks, 1, bytes);
  return static_cast<std::int64_t>(reinterpret_cast<std::uint64_t>(marks) - address);
}

}  // namespace

Memory& Memory::get() {
  static Memory* memory = new Memory;
  return *memory;
}

Memory::Memory() : total_(settings().memory_bytes) {
  const int file = settings().open ? make_file() : -1;
  const int of_host = settings().open ? PROT_READ | PROT_WRITE : PROT_NONE;
  device_base_ = reinterpret_cast<std::uint64_t>(reserve(of_host, file));
  const auto bytes = reinterpret_cast<std::uint64_t>(reserve(PROT_READ | PROT_WRITE, file));
  const auto shadow = reinterpret_cast<std::uint64_t>(reserve(PROT_READ | PROT_WRITE));
  to_bytes_ = static_cast<std::int64_t>(bytes - device_base_);
  to_shadow_ = static_cast<std::int64_t>(shadow - bytes);
  next_ = device_base_ + (std::uint64_t{1} << 21);
}

void* Memory::allocate(std::size_t bytes, MemoryKind kind, int device) {
  const std::unique_lock lock(mutex_);
  if (bytes > total_ || used_ + bytes > total_) return nullptr;
  Allocation made;
  made.kind = kind;
  made.device = device;
  made.number = ++count_;
  if (kind == MemoryKind::kDevice || kind == MemoryKind::kVariable) {
    const std::uint64_t room =
        (bytes + kRedZone + kAllocationAlignment - 1) / kAllocationAlignment * kAllocationAlignment;
    if (next_ + room > device_base_ + kSpace) return nullptr;
    made.lo = next_;
    next_ += room;
    made.delta = to_bytes_;
    made.shadow = to_shadow_;
    if (bytes <= kMostPoisoned && kind == MemoryKind::kDevice)
      std::memset(reinterpret_cast<char*>(made.lo + made.delta), settings().poison, bytes);
  } else {
    void* memory = nullptr;
    if (posix_memalign(&memory, kAllocationAlignment, bytes == 0 ? 1 : bytes) != 0) return nullptr;
    made.lo = reinterpret_cast<std::uint64_t>(memory);
    if (kind == MemoryKind::kManaged) made.shadow = new_marks(made.lo, bytes);
  }
  made.hi = made.lo + bytes;
  used_ += bytes;
  ++live_;
  allocations_[made.lo] = made;
  return reinterpret_cast<void*>(made.lo);
}

bool Memory::free(void* pointer, MemoryKind kind) {
  const std::unique_lock lock(mutex_);
  auto found = allocations_.find(reinterpret_cast<std::uint64_t>(pointer));
  if (found == allocations_.end() || found->second.is_freed) return false;
  Allocation& allocation = found->second;
  const bool is_pinned = allocation.kind == MemoryKind::kPinned;
  if (is_pinned != (kind == MemoryKind::kPinned)) return false;
  const std::size_t bytes = allocation.hi - allocation.lo;
  used_ -= bytes;
  --live_;
  if (allocation.delta == 0) {
    if (allocation.shadow != 0) std::free(pointer_at(allocation.lo + allocation.shadow));
    std::free(pointer);
    allocations_.erase(found);
    return true;
  }
  allocation.is_freed = true;  // never reused, to detect use after free
  const std::uint64_t page = 4096, begin = (allocation.lo + page - 1) / page * page,
                      end = allocation.hi / page * page;
  for (std::int64_t distance : {to_bytes_, to_bytes_ + to_shadow_})
    if (end > begin) madvise(reinterpret_cast<void*>(begin + distance), end - begin, MADV_DONTNEED);
  return true;
}

void Memory::add_host(void* pointer, std::size_t bytes) {
  const std::unique_lock lock(mutex_);
  Allocation made;
  made.kind = MemoryKind::kPinned;
  made.lo = reinterpret_cast<std::uint64_t>(pointer);
  made.hi = made.lo + bytes;
  made.number = ++count_;
  allocations_[made.lo] = made;
}

bool Memory::remove_host(void* pointer) {
  const std::unique_lock lock(mutex_);
  return allocations_.erase(reinterpret_cast<std::uint64_t>(pointer)) != 0;
}

const Allocation* Memory::find(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  auto above = allocations_.upper_bound(address);
  if (above == allocations_.begin()) return nullptr;
  const Allocation& allocation = std::prev(above)->second;
  if (allocation.is_freed || address >= allocation.hi) return nullptr;
  return &allocation;
}

std::string Memory::describe(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  std::ostringstream text;
  auto above = allocations_.upper_bound(address);
  const auto say = [&](const Allocation& allocation, std::int64_t distance, const char* where) {
    text << distance << " bytes " << where << " allocation " << allocation.number << " of "
         << allocation.hi - allocation.lo << " bytes" << (allocation.is_freed ? ", freed" : "");
  };
  if (above != allocations_.begin()) {
    const Allocation& below = std::prev(above)->second;
    if (address < below.hi)
      say(below, static_cast<std::int64_t>(address - below.lo), "into");
    else
      say(below, static_cast<std::int64_t>(address - below.hi), "behind the end of");
  }
  if (above != allocations_.end()) {
    if (text.tellp() > 0) text << "; ";
    say(above->second, static_cast<std::int64_t>(above->second.lo - address), "before");
  }
  return text.str();
}

char* Memory::host_of(const void* pointer, std::size_t bytes, bool& is_device) const {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  is_device = address >= device_base_ && address < device_base_ + kSpace;
  if (!is_device) return static_cast<char*>(const_cast<void*>(pointer));
  const Allocation* allocation = find(address);
  if (allocation == nullptr || address + bytes > allocation->hi) return nullptr;
  return reinterpret_cast<char*>(address + allocation->delta);
}

char* Memory::marks_of(const void* pointer, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const Allocation* allocation = find(address);
  if (allocation == nullptr || allocation->shadow == 0) return nullptr;
  if (address + bytes > allocation->hi) return nullptr;
  return pointer_at(address + allocation->delta + allocation->shadow);
}

void Memory::mark(const void* pointer, std::size_t bytes, bool written) {
  char* marks = settings().check_reads ? marks_of(pointer, bytes) : nullptr;
  if (marks != nullptr) std::memset(marks, written ? 1 : 0, bytes);
}

void Memory::copy_marks(const void* to, const void* from, std::size_t bytes) {
  char* target = settings().check_reads ? marks_of(to, bytes) : nullptr;
  if (target == nullptr) return;
  const char* source = marks_of(from, bytes);
  if (source != nullptr)
    std::memmove(target, source, bytes);
  else
    std::memset(target, 1, bytes);
}

}  // namespace ptx
