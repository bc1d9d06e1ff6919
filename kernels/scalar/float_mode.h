// The floating-point mode required by the formulas: rounding to nearest, with denormals.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace tersor::kernels {

/// Sets this thread's default mode, and restores the caller's mode on destruction. Without the
/// default mode, flushing denormals to zero in a trainer would give different bytes on different
/// ranks.
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
