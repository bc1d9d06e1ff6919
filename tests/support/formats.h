// The formats used only in tests. Replaces kernels/quantize/formats.h of the library.
#include "tests/support/fp8.h"
