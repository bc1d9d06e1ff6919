// Which CPU instruction set the codecs run on: the best one, unless another is forced.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tersor {

/// Payloads are byte-identical under each of them.
enum class Isa : std::uint8_t { kPortable, kAvx2, kAvx512, kNeon };

/// "portable", "avx2", "avx512" or "neon".
std::string_view isa_name(Isa isa);

/// Those that this build contains and this CPU can run, slowest first; never empty.
std::vector<Isa> available_isas();

/// The one in use: forced by `force_isa`, else by the environment variable TERSOR_ISA, else the
/// best. Throws InvalidArgument where TERSOR_ISA names one that is not available, and lists those
/// that are.
Isa current_isa();

/// Forces one for the whole process (tests and benchmarks; not while a codec runs); nullopt: no
/// longer. Throws InvalidArgument where it is not available, and lists those that are.
void force_isa(std::optional<Isa> isa);

/// The Isa of a name. Throws InvalidArgument that lists the names.
Isa parse_isa(std::string_view name);

}  // namespace tersor
