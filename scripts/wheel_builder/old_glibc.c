/* The symbols of newer glibc versions that g++'s static libstdc++ uses. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* Zero: the process may have several threads, so libstdc++ always uses atomic operations. */
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}
