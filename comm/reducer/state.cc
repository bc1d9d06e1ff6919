// See state.h for the contents. All numbers are little-endian. A state starts with magic u32,
// version u32, form u8, reduction u8, ranks u32, rank u32 and step u32. The sending order follows:
// count u64, then u32 per parameter. The parameters follow: count u64, then the fields of each
// parameter. These fields are name, codec, count u64, first u64, residual, owner, longest residual
// u64, longest owner u64 and codec memory. A state ends with 0 to 3 zero bytes and a u64 checksum
// of all preceding words, computed as in frames. Strings and lists begin with their length as u64.
#include "comm/reducer/state.h"

#include "kernels/host/checksum.h"

#include <tersor/align.h>
#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace tersor {
namespace {

constexpr std::uint32_t kStateMagic = 0x54535254;  // the bytes "TRST"
constexpr std::uint32_t kStateVersion = 7;

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kWord = sizeof(std::uint32_t);  // unit of the checksum

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return kernels::checksum(bytes.data(), bytes.size() / kWord, 0);
}

class Writer {
 public:
  explicit Writer(std::size_t expected_bytes) { bytes_.reserve(expected_bytes); }

  template <typename... Items>
  void operator()(const Items&... items) {
    (item(items), ...);
  }

  std::vector<std::byte> finish() {
    bytes_.resize(align_up(bytes_.size(), kWord));
    item(checksum_of(bytes_));
    return std::move(bytes_);
  }

 private:
  template <typename T>
  void item(const T& item) {
    if constexpr (requires { item.size(); }) {
      (*this)(std::uint64_t{item.size()});
      append(item.data(), item.size() * sizeof item[0]);
    } else {
      append(&item, sizeof item);
    }
  }

  void append(const void* source, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(source);
    bytes_.insert(bytes_.end(), first, first + bytes);
  }

  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename... Items>
  void operator()(Items&... items) {
    (item(items), ...);
  }

  template <typename T>
  T number() {
    T value;
    item(value);
    return value;
  }

  /// Only padding may precede the checksum.
  void end() const {
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    if (rest_.size() >= kWord || !std::ranges::all_of(rest_, is_zero))
      throw InvalidArgumentError("the reducer's state has extra bytes after the last parameter");
  }

 private:
  [[noreturn]] static void throw_truncated() {
    throw InvalidArgumentError("the reducer's state is truncated");
  }

  template <typename T>
  void item(T& item) {
    if constexpr (requires { item.size(); }) {
      const auto count = number<std::uint64_t>();
      if (count > rest_.size() / sizeof item[0]) throw_truncated();
      item.resize(count);
      read_bytes(item.data(), count * sizeof item[0]);
    } else {
      read_bytes(&item, sizeof item);
    }
  }

  void read_bytes(void* target, std::size_t bytes) {
    if (bytes > rest_.size()) throw_truncated();
    if (bytes != 0) std::memcpy(target, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
  }

  std::span<const std::byte> rest_;
};

std::span<const std::byte> check_envelope(std::span<const std::byte> bytes) {
  constexpr std::size_t kTrailer = sizeof(std::uint64_t);
  if (bytes.size() < 2 * sizeof(std::uint32_t) + kTrailer)
    throw InvalidArgumentError("these " + std::to_string(bytes.size()) +
                               " bytes are not a reducer's state: the state is longer");
  Reader head(bytes);
  if (head.number<std::uint32_t>() != kStateMagic)
    throw InvalidArgumentError(
        "these bytes are not a reducer's state: the first four bytes differ");
  const auto version = head.number<std::uint32_t>();
  if (version != kStateVersion)
    throw InvalidArgumentError("the reducer's state has version " + std::to_string(version) +
                               "; this build reads version " + std::to_string(kStateVersion));
  const auto body = bytes.first(bytes.size() - kTrailer);
  if (body.size() % kWord != 0 ||
      Reader(bytes.last(kTrailer)).number<std::uint64_t>() != checksum_of(body))
    throw InvalidArgumentError("the reducer's state is damaged: the checksum differs");
  return body.subspan(2 * sizeof(std::uint32_t));
}

std::size_t bytes_of(const ReducerState& state) {
  constexpr std::size_t kNumbers = 64;  // upper bound for the numbers of each part
  std::size_t bytes = 2 * kNumbers + state.order.size() * sizeof(std::uint32_t);
  for (const ReducerState::Parameter& one : state.parameters)
    bytes += kNumbers + one.name.size() + one.codec.size() +
             (one.residual.size() + one.owner.size() + one.memory.size()) * sizeof(float);
  return bytes;
}

/// The fields of a state except the parameters, in byte order. `archive`: Writer or Reader.
template <typename Archive, typename State>
void visit_head(Archive& archive, State& state) {
  archive(state.form, state.reduction, state.ranks, state.rank, state.step, state.order);
}

template <typename Archive, typename Parameter>
void visit_parameter(Archive& archive, Parameter& one) {
  archive(one.name, one.codec, one.count, one.residual_first, one.residual, one.owner,
          one.longest_residual, one.longest_owner, one.memory);
}

/// Returns the spec without deprecated names of options. A malformed spec is returned unchanged.
std::string current_spec(const std::string& spec) try {
  return make_codec(spec)->spec().text();
} catch (const InvalidArgumentError&) {
  return spec;
}

}  // namespace

std::vector<std::byte> write_state(const ReducerState& state) {
  Writer writer(bytes_of(state));
  writer(kStateMagic, kStateVersion);
  visit_head(writer, state);
  writer(std::uint64_t{state.parameters.size()});
  for (const ReducerState::Parameter& one : state.parameters) visit_parameter(writer, one);
  return writer.finish();
}

ReducerState read_state(std::span<const std::byte> bytes) {
  Reader reader(check_envelope(bytes));
  ReducerState state;
  visit_head(reader, state);
  if (state.form > ReducerState::Form::kPortable || state.reduction > Reduction::kMean)
    throw InvalidArgumentError("the reducer's state has an unknown form or reduction");
  const auto parameters = reader.number<std::uint64_t>();
  for (std::uint64_t i = 0; i < parameters; ++i) {
    ReducerState::Parameter& parameter = state.parameters.emplace_back();
    visit_parameter(reader, parameter);
    parameter.codec = current_spec(parameter.codec);
  }
  reader.end();
  return state;
}

}  // namespace tersor
