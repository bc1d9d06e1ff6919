// See whole.h.
#include "tests/ptx_device/decode/whole.h"

#include "tests/ptx_device/machine/late_stores.h"

#include <emmintrin.h>

#include <bit>
#include <cstring>

namespace ptx {
namespace {

constexpr unsigned kMostBytes = 32;  // per lane

/// The encoding of an access in `how`: sizes in memory and of a register, and sign.
struct Shape {
  explicit Shape(const Instruction& ins)
      : bytes(1u << (ins.how & 3)), register_bytes(1u << ((ins.how >> 2) & 3)), count(ins.count) {}
  static std::uint8_t how(const AccessType& access) {
    const auto log = [](unsigned bytes) { return static_cast<unsigned>(std::countr_zero(bytes)); };
    const unsigned sign = access.type[0] == 's' ? 16 : 0;
    return static_cast<std::uint8_t>(log(bytes_of_type(access.type)) |
                                     (log(access.register_bytes) << 2) | sign);
  }
  unsigned all() const { return bytes * count; }

  unsigned bytes, register_bytes, count;
};

char* register_of(Warp& warp, const Instruction& ins, unsigned part, unsigned lane) {
  return warp.registers + ins.v[part] + lane * Shape(ins).register_bytes;
}

/// The parts of a lane in memory order.
void read_registers(Warp& warp, const Instruction& ins, unsigned lane, unsigned char* to) {
  const Shape shape(ins);
  for (unsigned part = 0; part < shape.count; ++part)
    if (ins.v[part] != kNoPlace)
      std::memcpy(to + part * shape.bytes, register_of(warp, ins, part, lane), shape.bytes);
}

/// Fills a register with a value, with sign extension for signed types.
void write_register(Warp& warp, const Instruction& ins, unsigned part, unsigned lane,
                    const unsigned char* from) {
  const Shape shape(ins);
  std::uint64_t value = 0;
  std::memcpy(&value, from, shape.bytes);
  const unsigned unused = 64 - 8 * shape.bytes;
  if ((ins.how & 16) != 0)
    value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused);
  std::memcpy(register_of(warp, ins, part, lane), &value, shape.register_bytes);
}

void write_registers(Warp& warp, const Instruction& ins, unsigned lane, const unsigned char* from) {
  const Shape shape(ins);
  for (unsigned part = 0; part < shape.count; ++part)
    if (ins.v[part] != kNoPlace) write_register(warp, ins, part, lane, from + part * shape.bytes);
}

template <class F>
void for_lanes(std::uint32_t lanes, F act) {
  for (; lanes != 0; lanes &= lanes - 1) act(first_lane(lanes));
}

template <unsigned kBytes>
void copy_whole(unsigned char* to, const unsigned char* from) {
  if constexpr (kBytes == 16) {
    _mm_store_si128(reinterpret_cast<__m128i*>(to),
                    _mm_load_si128(reinterpret_cast<const __m128i*>(from)));
  } else {
    using Whole = std::conditional_t<kBytes == 8, std::uint64_t, std::uint32_t>;
    const Whole value = __atomic_load_n(reinterpret_cast<const Whole*>(from), __ATOMIC_RELAXED);
    __atomic_store_n(reinterpret_cast<Whole*>(to), value, __ATOMIC_RELAXED);
  }
}

template <unsigned kBytes, Space kSpace>
void load_whole(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  Access access(warp, ins, lanes, kBytes, Use::kRead);
  resolve<kSpace>(access);
  if (settings().check_reads) check_written(access);
  for_lanes(lanes, [&](unsigned i) {
    alignas(kBytes) unsigned char bytes[kBytes];
    copy_whole<kBytes>(bytes, reinterpret_cast<const unsigned char*>(access.addresses[i]));
    write_registers(warp, ins, i, bytes);
  });
}

template <unsigned kBytes, Space kSpace>
void store_whole(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  Access access(warp, ins, lanes, kBytes, Use::kWrite);
  resolve<kSpace>(access);
  for_lanes(lanes, [&](unsigned i) {
    alignas(kBytes) unsigned char bytes[kBytes];
    read_registers(warp, ins, i, bytes);
    copy_whole<kBytes>(reinterpret_cast<unsigned char*>(access.addresses[i]), bytes);
  });
  if (settings().check_reads) set_written(access);
}

template <unsigned kBytes>
WarpFunction whole_of(Use use, Space space) {
  const bool generic = space == Space::kGeneric;
  if (use == Use::kWrite)
    return generic ? store_whole<kBytes, Space::kGeneric> : store_whole<kBytes, Space::kGlobal>;
  return generic ? load_whole<kBytes, Space::kGeneric> : load_whole<kBytes, Space::kGlobal>;
}

/// A vector visible to other threads must be accessed as a whole.
void make_whole(Instruction& ins, Use use, Space space) {
  if (!ins.strong || ins.count == 1) return;
  switch (Shape(ins).all()) {
    case 4:
      ins.run = whole_of<4>(use, space);
      break;
    case 8:
      ins.run = whole_of<8>(use, space);
      break;
    case 16:
      ins.run = whole_of<16>(use, space);
      break;
    default:
      break;
  }
}

Storing storing(Warp& warp, std::uint32_t lanes) {
  return {warp.block->index, warp.index, lanes, warp.block->phase};
}

/// The lanes with global addresses.
std::uint32_t global_lanes(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  Access access(warp, ins, lanes, 1, Use::kRead);
  read_addresses(access);
  std::uint32_t found = 0;
  for_lanes(lanes,
            [&](unsigned i) { found |= std::uint32_t{access.addresses[i] < kSharedWindow} << i; });
  return found;
}

template <Space kSpace>
void load_late(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  LateStores& late = *warp.block->launch->late;
  const Shape shape(ins);
  Access access(warp, ins, lanes, shape.all(), Use::kRead);
  resolve<kSpace>(access);
  Seen seen[kLanes];
  for_lanes(lanes, [&](unsigned i) {
    const std::uint64_t other =
        late.look(warp.block->index, access.addresses[i], shape.all(), seen[i]);
    if (other != LateStores::kNoBlock && !ins.strong)
      complain(warp, i,
               "reads what block " + std::to_string(other) +
                   " has stored and promised to nobody by a fence");
  });
  ins.inner(warp, ins, lanes);
  for_lanes(lanes, [&](unsigned i) {
    if (seen[i].mask == 0) return;
    unsigned char bytes[kMostBytes];
    read_registers(warp, ins, i, bytes);
    for (unsigned k = 0; k < shape.all(); ++k)
      if (contains(seen[i].mask, k)) bytes[k] = seen[i].bytes[k];
    write_registers(warp, ins, i, bytes);
  });
}

template <Space kSpace>
void store_late(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const std::uint32_t global = global_lanes(warp, ins, lanes);
  if (global != lanes) ins.inner(warp, ins, lanes & ~global);
  if (global == 0) return;
  const Shape shape(ins);
  Access access(warp, ins, global, shape.all(), Use::kWrite);
  resolve<kSpace>(access);
  for_lanes(global, [&](unsigned i) {
    unsigned char bytes[kMostBytes];
    read_registers(warp, ins, i, bytes);
    warp.block->launch->late->put(storing(warp, 1u << i), access.addresses[i], bytes, shape.all());
  });
  if (settings().check_reads) set_written(access);
}

void fence_device(Warp& warp, const Instruction&, std::uint32_t lanes) {
  warp.block->launch->late->fence(storing(warp, lanes));
}
void fence_block(Warp& warp, const Instruction&, std::uint32_t lanes) {
  warp.block->launch->late->order(storing(warp, lanes));
}
void fence_warp(Warp& warp, const Instruction&, std::uint32_t) {
  warp.block->launch->late->order(storing(warp, kAll));
}

/// An atomic operation or a releasing store changes memory directly.
template <Space kSpace, WarpFunction kFence>
void change_directly(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  if constexpr (kFence != nullptr) kFence(warp, ins, lanes);
  const unsigned bytes = Shape(ins).all();
  Access access(warp, ins, lanes, bytes, Use::kAtomic);
  resolve<kSpace>(access);
  for_lanes(lanes, [&](unsigned i) {
    warp.block->launch->late->let_go(warp.block->index, access.addresses[i], bytes);
  });
  ins.inner(warp, ins, lanes);
}

template <WarpFunction kFence>
WarpFunction change_in(Space space) {
  return space == Space::kGlobal ? change_directly<Space::kGlobal, kFence>
                                 : change_directly<Space::kGeneric, kFence>;
}

void wrap(Instruction& ins, WarpFunction outer) {
  ins.inner = ins.run;
  ins.run = outer;
}

bool is_global(Space space) { return space == Space::kGlobal || space == Space::kGeneric; }
bool releases(const Decoder& decoder) { return decoder.has("release") || decoder.has("acq_rel"); }
WarpFunction change_of(const Decoder& decoder, Space space) {
  if (!releases(decoder)) return change_in<nullptr>(space);
  return decoder.has("cta") ? change_in<fence_block>(space) : change_in<fence_device>(space);
}

/// True if a statement's access is visible to other threads.
bool is_strong(const Decoder& decoder) {
  return decoder.has("volatile") || decoder.has("relaxed") || decoder.has("acquire") ||
         decoder.has("release") || decoder.has("mmio");
}

bool prepare(const Decoder& decoder, Instruction& ins, const AccessType& access) {
  ins.how = Shape::how(access);
  ins.strong = is_strong(decoder);
  return is_global(access.space);
}

}  // namespace

void wrap_load(const Decoder& decoder, Instruction& ins, const AccessType& access) {
  if (!prepare(decoder, ins, access)) return;
  const bool generic = access.space == Space::kGeneric;
  make_whole(ins, Use::kRead, access.space);
  if (settings().late_stores && !decoder.has("const"))
    wrap(ins, generic ? load_late<Space::kGeneric> : load_late<Space::kGlobal>);
}

void wrap_store(const Decoder& decoder, Instruction& ins, const AccessType& access) {
  if (!prepare(decoder, ins, access)) return;
  const bool generic = access.space == Space::kGeneric;
  make_whole(ins, Use::kWrite, access.space);
  if (!settings().late_stores) return;
  if (releases(decoder)) return wrap(ins, change_of(decoder, access.space));
  wrap(ins, generic ? store_late<Space::kGeneric> : store_late<Space::kGlobal>);
}

void wrap_atomic(const Decoder& decoder, Instruction& ins, Space space) {
  if (!settings().late_stores || !is_global(space)) return;
  ins.how = Shape::how({decoder.type(), decoder.bytes(), 1, space, false});
  wrap(ins, change_of(decoder, space));
}

WarpFunction late_fence(const Decoder& decoder) {
  return decoder.has("cta") ? fence_block : fence_device;
}

WarpFunction late_warp_barrier() { return fence_warp; }

}  // namespace ptx
