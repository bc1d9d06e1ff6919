// Fuzzes weight deltas: reading, checking and applying must either refuse or succeed, without
// access outside of the spans. Each input is tried unchanged and with a correct checksum, on a base
// of zeros with the tensors of the input.

#include "kernels/delta/cpu.h"

#include <tersor/delta.h>
#include <tersor/error.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace {

using namespace tersor;

constexpr std::uint64_t kMostBytes = 1 << 20;

void try_delta(ConstByteSpan delta) {
  std::vector<DeltaTensor> tensors;
  std::vector<std::vector<std::uint64_t>> values;  // aligned to every dtype
  std::vector<ByteSpan> spans;
  std::uint64_t bytes = 0;
  for (const DeltaEntry& entry : delta_entries(delta)) {
    const std::uint64_t own = entry.count * delta_dtype_bytes(entry.tensor.dtype);
    if ((bytes += own) > kMostBytes) return;
    tensors.push_back(entry.tensor);
    values.emplace_back((own + 7) / 8);
    spans.push_back(std::as_writable_bytes(std::span(values.back())).first(own));
  }
  const std::vector<ConstByteSpan> base(spans.begin(), spans.end());
  try {
    delta_check(tensors, base, delta, {.base = DeltaBase::kTrust});
  } catch (const WireError&) {
    for (const auto& one : values)
      for (const std::uint64_t value : one)
        if (value != 0) std::abort();  // a check wrote
    return;
  }
  delta_apply(tensors, spans, delta, {.base = DeltaBase::kTrust});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  const auto input = std::as_bytes(std::span(bytes, count));
  std::vector<std::byte> delta(input.begin(), input.end());
  for (const bool forged : {false, true}) try {
      if (forged && count >= 64) {
        const std::uint64_t length = count, zero = 0;
        std::memcpy(delta.data() + 8, &length, sizeof length);
        std::memcpy(delta.data() + 56, &zero, sizeof zero);
        const std::uint64_t sum = kernels::delta_checksum(delta.data(), count, 0);
        std::memcpy(delta.data() + 56, &sum, sizeof sum);
      }
      try_delta(delta);
    } catch (const WireError&) {
    }
  return 0;
}
