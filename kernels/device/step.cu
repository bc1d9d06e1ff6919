// See step.h. One thread, one word.

#include "kernels/device/device_call.cuh"
#include "kernels/device/step.h"

namespace tersor::kernels {

void advance_step(StateWords* words, StreamView stream) {
  AdvanceWordsKernel kernel;
  kernel.next = {words, words, 0};
  Queue(stream).launch(kernel, 1);
}

}  // namespace tersor::kernels
