// The formats that only tests know, listed as kernels/quantize/formats.h lists those of the
// library.
#include "tests/support/fp8.h"
