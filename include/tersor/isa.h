// Selects the CPU instruction set of the codecs. The default is the best available set.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tersor {

/// A CPU instruction set. Payloads are byte-identical under all instruction sets.
enum class Isa : std::uint8_t { kPortable, kAvx2, kAvx512, kNeon };

/// Returns "portable", "avx2", "avx512" or "neon". Thread-safe.
std::string_view isa_name(Isa isa);

/// Returns the instruction sets that this build contains and this CPU supports, slowest first. The
/// list is never empty. Thread-safe.
std::vector<Isa> available_isas();

/// Returns the instruction set in use: the argument of `force_isa`, else the environment variable
/// TERSOR_ISA, else the best available set. Throws InvalidArgumentError if TERSOR_ISA names an
/// unavailable set; the message lists the available sets. Thread-safe.
Isa current_isa();

/// Forces an instruction set for the whole process; nullopt removes the choice. Meant for tests and
/// benchmarks. Must not be called while a codec runs. Throws InvalidArgumentError if the set is
/// unavailable; the message lists the available sets.
void force_isa(std::optional<Isa> isa);

/// Returns the instruction set with this name. Throws InvalidArgumentError for an unknown name; the
/// message lists the names. Thread-safe.
Isa parse_isa(std::string_view name);

}  // namespace tersor
