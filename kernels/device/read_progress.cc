// The host's side of marks.h.
#include "kernels/device/marks.h"

namespace tersor::kernels {
namespace {

template <typename T>
T look(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

}  // namespace

ProgressWords read_progress(const ProgressWords& words) {
  ProgressWords copy;
  copy.ended = look(words.ended);
  copy.begun = look(words.begun);
  copy.signals = look(words.signals);
  copy.timeout_ms = look(words.timeout_ms);
  copy.name = look(words.name);
  return copy;
}

}  // namespace tersor::kernels
