// The quantising formats of this build, one per line, in the order used by codecs(). If
// TERSOR_QUANTIZE_FORMAT(Format) is defined, including this header expands the macro once per
// format.
// clang-format off
#include "kernels/quantize/int8.h"
#include "kernels/quantize/int4.h"
#include "kernels/quantize/mxfp8.h"
#include "kernels/quantize/nvfp4.h"
