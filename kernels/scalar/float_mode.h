// The rounding and denormal mode under which the formulas hold: to nearest, denormals kept.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace tersor::kernels {

/// Sets the default mode of this thread and puts the caller's back. Trainers that flush denormals
/// to zero would otherwise get other bytes than their peers.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(read()) {
    if (saved_ != kDefault) write(kDefault);
  }
  ~DefaultFloatMode() {
    if (saved_ != kDefault) write(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__) || defined(__i386__)
  using Word = std::uint32_t;
  static constexpr Word kDefault = 0x1f80;                   // all exceptions masked
  static Word read() { return _mm_getcsr() & ~Word{0x3f}; }  // without the sticky flags
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kDefault = 0;
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" ::"r"(word)); }
#else
  using Word = std::uint32_t;
  static constexpr Word kDefault = 0;
  static Word read() { return kDefault; }
  static void write(Word) {}
#endif

  Word saved_;
};

}  // namespace tersor::kernels
