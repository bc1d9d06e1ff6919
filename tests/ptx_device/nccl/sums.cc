// See sums.h.
#include "tests/ptx_device/nccl/sums.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace ptx::nccl {
namespace {

/// A 16-bit value, added as f32 and rounded to nearest.
struct Half {
  _Float16 value;
  operator float() const { return static_cast<float>(value); }
  static Half from(float wide) { return {static_cast<_Float16>(wide)}; }
};

struct Bfloat16 {
  std::uint16_t bits;
  operator float() const {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  static Bfloat16 from(float value) {
    std::uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    if ((wide & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
    return {static_cast<std::uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16)};
  }
};

template <class T>
T result_of(T a, T b, ncclRedOp_t op) {
  return op == ncclMax ? std::max(a, b) : op == ncclMin ? std::min(a, b) : static_cast<T>(a + b);
}
template <>
Half result_of(Half a, Half b, ncclRedOp_t op) {
  return Half::from(result_of<float>(a, b, op));
}
template <>
Bfloat16 result_of(Bfloat16 a, Bfloat16 b, ncclRedOp_t op) {
  return Bfloat16::from(result_of<float>(a, b, op));
}

template <class T>
void combine_values(char* to, const char* from, std::size_t count, ncclRedOp_t op) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, to + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    a = result_of(a, b, op);
    std::memcpy(to + i * sizeof(T), &a, sizeof(T));
  }
}

}  // namespace

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

void combine(char* to, const char* from, std::size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclFloat16:
      return combine_values<Half>(to, from, count, op);
    case ncclBfloat16:
      return combine_values<Bfloat16>(to, from, count, op);
    case ncclFloat32:
      return combine_values<float>(to, from, count, op);
    case ncclFloat64:
      return combine_values<double>(to, from, count, op);
    case ncclInt8:
      return combine_values<std::int8_t>(to, from, count, op);
    case ncclUint8:
      return combine_values<std::uint8_t>(to, from, count, op);
    case ncclInt32:
      return combine_values<std::int32_t>(to, from, count, op);
    case ncclUint32:
      return combine_values<std::uint32_t>(to, from, count, op);
    case ncclInt64:
      return combine_values<std::int64_t>(to, from, count, op);
    default:
      return combine_values<std::uint64_t>(to, from, count, op);
  }
}

}  // namespace ptx::nccl
