/* Zig's run-time library has slower copies of these functions, and the linker would prefer them. */
#include <stddef.h>

#ifdef __x86_64__
#define OLDEST "GLIBC_2.2.5"
#define MEMCPY "GLIBC_2.14"
#else
#define OLDEST "GLIBC_2.17"
#define MEMCPY OLDEST
#endif

#define FORWARD(type, name, version, parameters, arguments) \
  __asm__(".symver glibc_" #name ", " #name "@" version);   \
  type glibc_##name parameters;                              \
  __attribute__((visibility("hidden"))) type name parameters { return glibc_##name arguments; }

FORWARD(void*, memcpy, MEMCPY, (void* to, const void* from, size_t size), (to, from, size))
FORWARD(void*, memmove, OLDEST, (void* to, const void* from, size_t size), (to, from, size))
FORWARD(void*, memset, OLDEST, (void* to, int value, size_t size), (to, value, size))
FORWARD(int, memcmp, OLDEST, (const void* a, const void* b, size_t size), (a, b, size))
