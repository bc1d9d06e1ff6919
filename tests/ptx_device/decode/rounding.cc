// See rounding.h. The call through a pointer stops the compiler from moving arithmetic out of the
// changed rounding mode.
#include "tests/ptx_device/decode/rounding.h"

#include <xmmintrin.h>

#include <iterator>

namespace ptx {
namespace {

template <unsigned kMode>
void run_rounding(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr((before & ~_MM_ROUND_MASK) | kMode);
  ins.inner(warp, ins, lanes);
  _mm_setcsr(before);
}

}  // namespace

void direct_rounding(const Decoder& decoder, Instruction& ins) {
  static constexpr WarpFunction kFunctions[] = {run_rounding<_MM_ROUND_TOWARD_ZERO>,
                                                run_rounding<_MM_ROUND_DOWN>,
                                                run_rounding<_MM_ROUND_UP>};
  const unsigned which = decoder.which({"rz", "rm", "rp"});
  if (which == std::size(kFunctions)) return;
  ins.inner = ins.run;
  ins.run = kFunctions[which];
}

}  // namespace ptx
