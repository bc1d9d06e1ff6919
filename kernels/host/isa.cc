// Selects the instruction set: forced by force_isa, else TERSOR_ISA, else the best supported by the
// CPU.

#include <tersor/isa.h>

#include "kernels/host/dispatch.h"

#include <tersor/error.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

namespace tersor {
namespace {

struct Entry {
  Isa isa;
  std::string_view name;
  long long targets;  // Highway's target bits
};

// Slowest first.
constexpr Entry kEntries[] = {
    {Isa::kPortable, "portable", HWY_SCALAR | HWY_EMU128},
    {Isa::kNeon, "neon", (1LL << 28) | (1LL << 29)},
    {Isa::kAvx2, "avx2", HWY_AVX2},
    {Isa::kAvx512, "avx512", HWY_AVX3},
};

const Entry& entry_of(Isa isa) { return *std::ranges::find(kEntries, isa, &Entry::isa); }

/// Returns the bits of the targets that are built and supported. Portable code is always supported.
long long usable_targets() {
  return HWY_TARGETS & (hwy::SupportedTargets() | HWY_SCALAR | HWY_EMU128);
}

std::string list_of(const std::vector<Isa>& isas) {
  std::string list;
  for (const Isa isa : isas) list += (list.empty() ? "" : ", ") + std::string(isa_name(isa));
  return list;
}

void check_available(Isa isa, std::string_view requester) {
  const auto available = available_isas();
  if (std::ranges::find(available, isa) == available.end())
    throw InvalidArgumentError(
        std::string(requester) + " requests instruction set " + std::string(isa_name(isa)) +
        ", which is not available here; available are: " + list_of(available));
}

Isa default_isa() {
  const char* name = std::getenv("TERSOR_ISA");
  if (name == nullptr || *name == '\0') return available_isas().back();
  const Isa isa = parse_isa(name);
  check_available(isa, "TERSOR_ISA");
  return isa;
}

/// Returns the index in a table of HWY_EXPORT. Each bit of the mask has one function in the table.
std::size_t table_index([[maybe_unused]] Isa isa) {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
  return 0;
#else
  const long long targets = entry_of(isa).targets & usable_targets();
  const auto mask =
      static_cast<std::uint64_t>(HWY_CHOSEN_TARGET_SHIFT(targets & ~(HWY_SCALAR | HWY_EMU128)) |
                                 HWY_CHOSEN_TARGET_MASK_SCALAR);
  return hwy::Num0BitsBelowLS1Bit_Nonzero64(mask);
#endif
}

/// The chosen index << 8 | (isa + 1), or 0 before the first choice.
std::atomic<std::uint32_t> chosen{0};

std::uint32_t packed(Isa isa) {
  return static_cast<std::uint32_t>(table_index(isa) << 8) | (static_cast<std::uint32_t>(isa) + 1);
}

std::uint32_t choice() {
  std::uint32_t value = chosen.load(std::memory_order_relaxed);
  if (value != 0) return value;
  static const std::uint32_t default_choice = packed(default_isa());
  chosen.compare_exchange_strong(value, default_choice, std::memory_order_relaxed);
  return value != 0 ? value : default_choice;
}

}  // namespace

std::string_view isa_name(Isa isa) { return entry_of(isa).name; }

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Entry& entry : kEntries)
    if ((entry.targets & usable_targets()) != 0) isas.push_back(entry.isa);
  return isas;
}

Isa current_isa() { return static_cast<Isa>((choice() & 0xff) - 1); }

void force_isa(std::optional<Isa> isa) {
  if (isa) check_available(*isa, "force_isa");
  chosen.store(isa ? packed(*isa) : 0, std::memory_order_relaxed);
}

Isa parse_isa(std::string_view name) {
  for (const Entry& entry : kEntries)
    if (entry.name == name) return entry.isa;
  throw InvalidArgumentError("instruction set is \"" + std::string(name) +
                             "\": give portable, neon, avx2 or avx512");
}

namespace kernels {

std::size_t dispatch_index() { return choice() >> 8; }

}  // namespace kernels
}  // namespace tersor
