// Loads.
#include "tests/ptx_device/decode/accesses.h"
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/lanes.h"

#include <cstring>

namespace ptx {
namespace {

/// Reads a part of kCount values in each lane.
template <class T, class R, unsigned kCount>
inline void read_contiguous(const Access& access, unsigned part, R* to) {
  using Memory __attribute__((may_alias)) = T;
  const auto* from = reinterpret_cast<const Memory*>(access.addresses[0]) + part;
  for (unsigned i = 0; i < kLanes; ++i) to[i] = static_cast<R>(from[i * kCount]);
}
template <class T, class R>
inline void read_uniform(const Access& access, unsigned part, R* to) {
  T value;
  const unsigned first = first_lane(access.lanes);
  std::memcpy(&value, reinterpret_cast<const char*>(access.addresses[first]) + part * sizeof(T),
              sizeof(T));
  put_same(to, static_cast<R>(value), access.lanes);
}
template <class T, class R>
inline void read_each(const Access& access, unsigned part, R* to) {
  R values[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    T value;
    std::memcpy(&value, reinterpret_cast<const char*>(access.addresses[i]) + part * sizeof(T),
                sizeof(T));
    values[i] = static_cast<R>(value);
  }
  put(to, values, access.lanes);
}

/// T: the type in memory; R: the register type, of equal or larger size; kCount: the number of
/// values.
template <class T, class R, unsigned kCount, Space kSpace>
void load(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  Access access(warp, ins, lanes, sizeof(T) * kCount, Use::kRead);
  resolve<kSpace>(access);
  if (kSpace != Space::kParam && settings().check_reads) check_written(access);
  for (unsigned part = 0; part < kCount; ++part) {
    if (ins.v[part] == kNoPlace) continue;
    if (access.contiguous)
      read_contiguous<T, R, kCount>(access, part, at<R>(warp, ins.v[part]));
    else if (access.uniform)
      read_uniform<T, R>(access, part, at<R>(warp, ins.v[part]));
    else
      read_each<T, R>(access, part, at<R>(warp, ins.v[part]));
  }
}

/// Loads a parameter at address imm, equal for all threads.
template <class T, class R, unsigned kCount>
void load_param(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const char* from = warp.block->launch->params.data() + ins.imm;
  for (unsigned part = 0; part < kCount; ++part) {
    if (ins.v[part] == kNoPlace) continue;
    T value;
    std::memcpy(&value, from + part * sizeof(T), sizeof(T));
    put_same(at<R>(warp, ins.v[part]), static_cast<R>(value), lanes);
  }
}

template <class T, class R, unsigned kCount>
WarpFunction in_space(Space space, bool is_fixed) {
  switch (space) {
    case Space::kGlobal:
      return load<T, R, kCount, Space::kGlobal>;
    case Space::kShared:
      return load<T, R, kCount, Space::kShared>;
    case Space::kLocal:
      return load<T, R, kCount, Space::kLocal>;
    case Space::kParam:
      return is_fixed ? load_param<T, R, kCount> : load<T, R, kCount, Space::kParam>;
    case Space::kGeneric:
      return load<T, R, kCount, Space::kGeneric>;
  }
  return nullptr;
}

template <class T>
WarpFunction load_of_type(const AccessType& access) {
  return by_register<T>(access.register_bytes, [&]<class M, class R>() {
    return by_count(access.count, [&]<unsigned kCount>() {
      return in_space<M, R, kCount>(access.space, access.is_fixed);
    });
  });
}

}  // namespace

WarpFunction load_of(const AccessType& access) {
  const bool is_signed = access.type[0] == 's';
  switch (bytes_of_type(access.type)) {
    case 1:
      return is_signed ? load_of_type<std::int8_t>(access) : load_of_type<std::uint8_t>(access);
    case 2:
      return is_signed ? load_of_type<std::int16_t>(access) : load_of_type<std::uint16_t>(access);
    case 4:
      return is_signed ? load_of_type<std::int32_t>(access) : load_of_type<std::uint32_t>(access);
    case 8:
      return load_of_type<std::uint64_t>(access);
    default:
      return nullptr;
  }
}

}  // namespace ptx
