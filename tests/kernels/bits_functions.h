// The loops of kernels/bits/bits-inl.h as functions, compiled for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Writes the unary codes of `numbers[i] >> shift`. Returns the number of 32-bit words, including
/// the zeros after the last code. `plane` and `numbers` have kPackedSlack more bytes.
std::size_t pack_quotients(const std::uint8_t* numbers, std::size_t count, unsigned shift,
                           std::byte* plane);

/// As `read_quotients` of kernels/bits/bits.h. `quotients` has kPackedSlack more bytes.
std::size_t unpack_quotients(const std::byte* plane, std::size_t words, std::size_t count,
                             std::uint8_t* quotients);

/// Writes bit `bit` of each of `count` numbers, a multiple of 64, to a plane. Returns the number of
/// ones. `plane` has kPackedSlack more bytes.
std::size_t pack_plane(const std::uint8_t* numbers, std::size_t count, unsigned bit,
                       std::uint8_t* plane);

/// Adds 2^bit to each number whose bit in the plane is 1. `plane` has kPackedSlack more bytes.
void unpack_plane(const std::uint8_t* plane, std::size_t count, unsigned bit,
                  std::uint8_t* numbers);

}  // namespace tersor::kernels
