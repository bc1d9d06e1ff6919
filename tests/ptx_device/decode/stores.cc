// Stores. A store truncates a register to the size in memory. Signs do not matter.
#include "tests/ptx_device/decode/accesses.h"
#include "tests/ptx_device/decode/decoder.h"

#include <cstring>

namespace ptx {
namespace {

/// Writes a part of kCount values in each lane.
template <class T, class R, unsigned kCount>
inline void write_contiguous(const Access& access, unsigned part, const R* from) {
  using Memory __attribute__((may_alias)) = T;
  auto* to = reinterpret_cast<Memory*>(access.addresses[0]) + part;
  for (unsigned i = 0; i < kLanes; ++i) to[i * kCount] = static_cast<T>(from[i]);
}
template <class T, class R>
inline void write_each(const Access& access, unsigned part, const R* from) {
  for (std::uint32_t left = access.lanes; left != 0; left &= left - 1) {
    const unsigned i = first_lane(left);
    const T value = static_cast<T>(from[i]);
    std::memcpy(reinterpret_cast<char*>(access.addresses[i]) + part * sizeof(T), &value, sizeof(T));
  }
}

/// T: the type in memory; R: the register type, of equal or larger size; kCount: the number of
/// values.
template <class T, class R, unsigned kCount, Space kSpace>
void store(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  Access access(warp, ins, lanes, sizeof(T) * kCount, Use::kWrite);
  resolve<kSpace>(access);
  for (unsigned part = 0; part < kCount; ++part) {
    if (access.contiguous)
      write_contiguous<T, R, kCount>(access, part, at<R>(warp, ins.v[part]));
    else
      write_each<T, R>(access, part, at<R>(warp, ins.v[part]));
  }
  if (settings().check_reads) set_written(access);
}

template <class T, class R, unsigned kCount>
WarpFunction in_space(Space space) {
  switch (space) {
    case Space::kGlobal:
      return store<T, R, kCount, Space::kGlobal>;
    case Space::kShared:
      return store<T, R, kCount, Space::kShared>;
    case Space::kLocal:
      return store<T, R, kCount, Space::kLocal>;
    case Space::kGeneric:
      return store<T, R, kCount, Space::kGeneric>;
    default:
      return nullptr;
  }
}

template <class T>
WarpFunction store_of_type(const AccessType& access) {
  return by_register<T>(access.register_bytes, [&]<class M, class R>() {
    return by_count(access.count,
                    [&]<unsigned kCount>() { return in_space<M, R, kCount>(access.space); });
  });
}

}  // namespace

WarpFunction store_of(const AccessType& access) {
  switch (bytes_of_type(access.type)) {
    case 1:
      return store_of_type<std::uint8_t>(access);
    case 2:
      return store_of_type<std::uint16_t>(access);
    case 4:
      return store_of_type<std::uint32_t>(access);
    case 8:
      return store_of_type<std::uint64_t>(access);
    default:
      return nullptr;
  }
}

}  // namespace ptx
