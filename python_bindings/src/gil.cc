#include "python_bindings/src/gil.h"

#include <pthread.h>
#include <unistd.h>

#ifdef __EXCEPTIONS
#error "compile with -fno-exceptions: pthread_cleanup_push then jumps instead of unwinding"
#endif

namespace tersor::python {
namespace {

void sleep_forever(void*) {
  for (;;) pause();
}

}  // namespace

void restore_thread(PyThreadState* state) {
  pthread_cleanup_push(sleep_forever, nullptr);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}

PyGILState_STATE ensure_gil() {
  volatile PyGILState_STATE state = PyGILState_LOCKED;
  pthread_cleanup_push(sleep_forever, nullptr);
  state = PyGILState_Ensure();
  pthread_cleanup_pop(0);
  return state;
}

}  // namespace tersor::python
