// Counter-based random bytes: Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", SC 2011). Each value of a parameter has its own byte, independent of chunks, threads and
// devices.
#pragma once

#include "kernels/scalar/bits.h"

#include <cstddef>

namespace tersor::kernels {

constexpr int kPhiloxRounds = 7;
constexpr std::uint32_t kPhiloxMultiplier0 = 0xd2511f53u;
constexpr std::uint32_t kPhiloxMultiplier1 = 0xcd9e8d57u;
constexpr std::uint32_t kPhiloxBump0 = 0x9e3779b9u;
constexpr std::uint32_t kPhiloxBump1 = 0xbb67ae85u;

/// 512 consecutive values share 32 counters.
constexpr std::size_t kNoiseUnit = 512;
constexpr std::size_t kNoiseUnitCounters = 32;

/// Four words: a counter before the rounds, random bits after the rounds.
struct PhiloxWords {
  std::uint32_t word[4];
};

TERSOR_BODY std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __umulhi(a, b);
#else
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(a) * b >> 32);
#endif
}

TERSOR_BODY PhiloxWords philox(PhiloxWords counter, std::uint64_t key) {
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint32_t(&word)[4] = counter.word;
    counter = {{multiply_high(kPhiloxMultiplier1, word[2]) ^ word[1] ^ key0,
                kPhiloxMultiplier1 * word[2],
                multiply_high(kPhiloxMultiplier0, word[0]) ^ word[3] ^ key1,
                kPhiloxMultiplier0 * word[0]}};
    key0 += kPhiloxBump0;
    key1 += kPhiloxBump1;
  }
  return counter;
}

/// The increment of SplitMix64's state per step.
constexpr std::uint64_t kSplitmixStep = 0x9e3779b97f4a7c15u;

/// A step of SplitMix64 (Steele, Lea, Flood 2014): a bijection that scatters every bit.
TERSOR_BODY constexpr std::uint64_t splitmix64(std::uint64_t state) {
  state += kSplitmixStep;
  state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
  state = (state ^ state >> 27) * 0x94d049bb133111ebu;
  return state ^ state >> 31;
}

/// Returns the key of a rank's noise. The parameter `phase` is 0 for the first quantisation and 1
/// for the owner's. Ranks need different noise, because equal noise on all ranks would not average
/// out.
TERSOR_BODY std::uint64_t noise_key(std::uint64_t seed, std::uint32_t rank, std::uint32_t phase) {
  return splitmix64(seed ^ static_cast<std::uint64_t>(rank) << 33 ^
                    static_cast<std::uint64_t>(phase) << 32);
}

/// Returns the counter of element `element` of a parameter.
TERSOR_BODY std::uint64_t noise_counter(std::uint64_t element) {
  return element / kNoiseUnit * kNoiseUnitCounters + element % 128 / 4;
}

/// noise_word returns the index of the word that contains the element's byte, and noise_byte
/// returns the index of the byte in the word.
TERSOR_BODY unsigned noise_word(std::uint64_t element) {
  return static_cast<unsigned>(element % kNoiseUnit / 128);
}
TERSOR_BODY unsigned noise_byte(std::uint64_t element) {
  return static_cast<unsigned>(element % 4);
}

/// Returns the 16 random bytes of counter `counter`, for a given step and parameter.
TERSOR_BODY PhiloxWords noise_words(std::uint64_t counter, std::uint64_t key, std::uint32_t step,
                                    std::uint32_t parameter) {
  return philox({{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                  step, parameter}},
                key);
}

/// Returns the random byte of an element.
TERSOR_BODY std::uint32_t noise_of(std::uint64_t element, std::uint64_t key, std::uint32_t step,
                                   std::uint32_t parameter) {
  const PhiloxWords words = noise_words(noise_counter(element), key, step, parameter);
  return words.word[noise_word(element)] >> (8 * noise_byte(element)) & 0xffu;
}

/// The keys of 16 random bits per element. Each key provides a byte.
struct WideKey {
  std::uint64_t high, low;
};
TERSOR_BODY WideKey wide_key(std::uint64_t key) { return {key, splitmix64(key)}; }

}  // namespace tersor::kernels
