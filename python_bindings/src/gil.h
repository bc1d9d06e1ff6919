// Takes the GIL in threads that may still run at the interpreter's end. Python before 3.14 then
// ends the thread by unwinding, which terminates a C++ process, or crashes if the module has a copy
// of the unwinder, as in the wheels. Here such a thread sleeps until the process ends.
#pragma once

#include <Python.h>

namespace tersor::python {

/// PyEval_RestoreThread.
void restore_thread(PyThreadState* state);

/// PyGILState_Ensure.
PyGILState_STATE ensure_gil();

}  // namespace tersor::python
