// Implements torch_messenger.h.
#include "python_bindings/src/torch_messenger.h"

#include <tersor/error.h>

#include <string>
#include <utility>

namespace tersor::python {
namespace {

/// What went wrong in Python, in one line.
std::string first_line(const nb::python_error& error) {
  const std::string text = nb::str(error.value()).c_str();
  return text.substr(0, text.find('\n'));
}

/// Runs what calls Python; its exceptions are the network's.
template <typename Call>
auto in_python(Call&& call) {
  try {
    return call();
  } catch (const nb::python_error& error) {
    throw TransportError(first_line(error));
  }
}

nb::object memory_view(const std::byte* bytes, std::size_t count) {
  auto* first = reinterpret_cast<char*>(const_cast<std::byte*>(bytes));
  PyObject* view = PyMemoryView_FromMemory(first, static_cast<Py_ssize_t>(count), PyBUF_WRITE);
  if (view == nullptr) nb::raise_python_error();
  return nb::steal(view);
}

}  // namespace

Messenger::~Messenger() {
  const nb::gil_scoped_acquire held;
  messenger_.reset();
}

// PyTorch makes tensors of writable memory only; what is sent is not written to.
Work Messenger::send(int peer, Group group, ConstByteSpan bytes) const {
  return in_python([&] {
    return messenger_.attr("send")(memory_view(bytes.data(), bytes.size()), peer,
                                   static_cast<int>(group));
  });
}

Work Messenger::receive(int peer, Group group, ByteSpan bytes) const {
  return in_python([&] {
    return messenger_.attr("receive")(memory_view(bytes.data(), bytes.size()), peer,
                                      static_cast<int>(group));
  });
}

void Messenger::wait(const Work& work) const {
  in_python([&] { messenger_.attr("wait")(work); });
}

bool Messenger::abort() const {
  bool aborted = false, interrupted = false;
  for (int attempt = 0; attempt < 2 && !aborted; ++attempt) try {
      messenger_.attr("abort")();
      aborted = true;
    } catch (const nb::python_error& error) {
      interrupted = interrupted || error.matches(PyExc_KeyboardInterrupt);
    }
  if (interrupted) PyErr_SetInterrupt();
  return aborted;
}

}  // namespace tersor::python
