// The quantising formats of this build, a line each, in the order in which codecs() names them:
// where TERSOR_QUANTIZE_FORMAT(Format) is defined, it stands here once for each.
// clang-format off
#include "kernels/quantize/int8.h"
#include "kernels/quantize/int4.h"
