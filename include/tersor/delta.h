// Weight deltas: the difference between two versions of a model's weights, in a fraction of the
// bytes of XOR and zstd. A receiver that has the old version gets every bit of the new version.
// docs/reference/delta-format.md describes the bytes.
#pragma once

#include <tersor/error.h>
#include <tersor/span.h>
#include <tersor/stream.h>
#include <tersor/threads.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// The type of a tensor's values. The numbers are part of the format. Use the integer of the same
/// width for unsigned integers and for bool.
enum class DeltaDtype : std::uint8_t {
  kF32 = 0,   ///< float32
  kBf16 = 1,  ///< bfloat16
  kF16 = 2,   ///< float16
  kF64 = 3,   ///< float64
  kE4m3 = 4,  ///< float8 with 4 exponent bits, with or without infinities
  kE5m2 = 5,  ///< float8 with 5 exponent bits
  kInt8 = 6,
  kInt16 = 7,
  kInt32 = 8,
  kInt64 = 9,
};

/// Returns the width of a value in bytes.
constexpr unsigned delta_dtype_bytes(DeltaDtype dtype) {
  constexpr unsigned kBytes[] = {4, 2, 2, 8, 1, 1, 1, 2, 4, 8};
  return kBytes[static_cast<std::size_t>(dtype)];
}
/// Returns the bits of a value's exponent, 0 for integers.
constexpr unsigned delta_exponent_bits(DeltaDtype dtype) {
  constexpr unsigned kBits[] = {8, 8, 5, 11, 4, 5, 0, 0, 0, 0};
  return kBits[static_cast<std::size_t>(dtype)];
}
/// Returns "f32", "bf16", "f16", "f64", "e4m3", "e5m2", "i8", "i16", "i32" or "i64".
std::string_view delta_dtype_name(DeltaDtype dtype);

/// Values per block.
inline constexpr std::size_t kDeltaBlock = 16'384;
/// The size of a block that is stored unchanged.
inline constexpr std::uint16_t kDeltaPlain = 0x8000;
/// The first bytes of a delta: "TDLT".
inline constexpr std::uint32_t kDeltaMagic = 0x544c4454;
/// The version of the format.
inline constexpr std::uint16_t kDeltaVersion = 1;

/// The description of a tensor. Names of a model must be different.
struct DeltaTensor {
  std::string name;                     ///< of the parameter
  DeltaDtype dtype = DeltaDtype::kF32;  ///< of the values
  std::vector<std::uint64_t> shape;     ///< sizes of the dimensions; empty for a scalar

  bool operator==(const DeltaTensor&) const = default;
};

/// A tensor in a delta.
struct DeltaEntry {
  DeltaTensor tensor;                 ///< name, dtype and shape
  std::uint64_t count = 0;            ///< values
  std::uint64_t changed = 0;          ///< changed values
  unsigned classes = 1;               ///< classes of exponents
  std::uint64_t bytes = 0;            ///< bytes in the delta
  std::uint64_t base_checksum = 0;    ///< of the tensor before the delta
  std::uint64_t result_checksum = 0;  ///< of the tensor after the delta
};

/// The base's values are not the values that the delta was made from. Nothing was written.
class BaseMismatchError : public Error {
 public:
  using Error::Error;
};

/// How a base is checked: by a read of all values, or not at all because this process wrote the
/// base and nobody else can have changed the base.
enum class DeltaBase : std::uint8_t { kCheck, kTrust };

/// Options of the functions below.
struct DeltaOptions {
  unsigned classes = 0;  ///< 1, 2 or 4 classes of exponents; 0: the fewest bytes, by a sample
  DeltaBase base = DeltaBase::kCheck;  ///< whether `delta_check` and `delta_apply` read the base
  Threads* threads = nullptr;          ///< null: only the calling thread
};

/// Returns the delta from `base` to `now`. The lists are parallel to `tensors`. More classes take
/// fewer bytes and more time: on links above about 2 Gbit/s, one class is usually quicker. Throws
/// InvalidArgumentError for wrong sizes, equal names and other numbers of classes. 8-bit floats
/// use at most 2 classes, and integers 1.
std::vector<std::byte> delta_encode(std::span<const DeltaTensor> tensors,
                                    std::span<const ConstByteSpan> base,
                                    std::span<const ConstByteSpan> now,
                                    const DeltaOptions& options = {});

/// Returns the tensors of a delta. Throws WireError if the delta is damaged.
std::vector<DeltaEntry> delta_entries(ConstByteSpan delta);

/// Checks that a delta belongs to these tensors and to this base, and proves the checksum of the
/// result from the changes alone. Tensors are matched by name, in any order. Writes nothing. Throws
/// WireError for a damaged delta, InvalidArgumentError for another model (the message names the
/// tensor), and BaseMismatchError for another base.
void delta_check(std::span<const DeltaTensor> tensors, std::span<const ConstByteSpan> base,
                 ConstByteSpan delta, const DeltaOptions& options = {});

/// A checked and decoded delta, which can be written and undone. Keeps one value and a place of
/// 2 bytes per change: at most a copy of the changed blocks.
class PreparedDelta {
 public:
  /// Performs `delta_check` and throws as `delta_check` does. Does not need `delta` afterwards.
  PreparedDelta(std::span<const DeltaTensor> tensors, std::span<const ConstByteSpan> base,
                ConstByteSpan delta, const DeltaOptions& options = {});

  /// Turns the base into the result, in place, and keeps the old values. `values` must have the
  /// contents of `base`, and no other thread may use `values` during the call. Throws
  /// InvalidArgumentError for spans of other sizes, for overlapping spans and for a second call,
  /// before anything is written.
  void write(std::span<const ByteSpan> values, Threads* threads = nullptr);
  /// Turns the result, or a mixture of result and base, into the base. Does nothing before `write`.
  /// Throws InvalidArgumentError for spans of other sizes.
  void undo(std::span<const ByteSpan> values) const;
  /// Returns the size in bytes.
  std::size_t bytes() const;

 private:
  struct Block {
    std::size_t tensor, first_byte;  // of the block
    std::size_t count, record;       // values, and the offset of the record
    bool whole;                      // the record has all values of the block, and no places
    bool written = false;            // the record has old values
  };
  std::vector<DeltaTensor> tensors_;
  std::vector<Block> blocks_;
  std::vector<std::byte> records_;  // values, then their places; new values before `write`
};

/// PreparedDelta for weights in device memory. Keeps the delta and the changes in device memory:
/// for bf16, 5 bytes per changed value. All functions wait for their stream.
class PreparedDeviceDelta {
 public:
  /// `base` is in memory of the current device, `delta` on the host. Work that wrote the weights
  /// must be done, or queued on the stream. Throws as PreparedDelta does, OutOfMemoryError, and
  /// CudaError in a build without CUDA.
  PreparedDeviceDelta(std::span<const DeltaTensor> tensors, std::span<const ConstByteSpan> base,
                      ConstByteSpan delta, StreamView stream, const DeltaOptions& options = {});
  ~PreparedDeviceDelta();
  PreparedDeviceDelta(PreparedDeviceDelta&&) noexcept;
  PreparedDeviceDelta& operator=(PreparedDeviceDelta&&) noexcept;

  /// As PreparedDelta::write.
  void write(std::span<const ByteSpan> values, StreamView stream);
  /// As PreparedDelta::undo.
  void undo(std::span<const ByteSpan> values, StreamView stream);
  /// Returns the size in device memory in bytes.
  std::size_t bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Turns the base into the result, in place: PreparedDelta, and `write`. Throws as
/// `delta_check` does before anything is written.
void delta_apply(std::span<const DeltaTensor> tensors, std::span<const ByteSpan> values,
                 ConstByteSpan delta, const DeltaOptions& options = {});

}  // namespace tersor
