// Completes nanobind's array import: streams for __dlpack__, ml_dtypes, libraries with read-only
// arrays, and error messages with a remedy.
#include "python_bindings/src/arrays.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <tersor/dtype.h>
#include <tersor/error.h>
#include <tersor/wire.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

namespace tersor::python {
namespace {

using Imported = nb::ndarray<nb::ro>;
using Writable = nb::ndarray<>;
enum class Access { kRead, kWrite };

/// An array as nanobind sees it, and its dtype if DLPack cannot express the dtype.
struct Import {
  Imported array;
  std::optional<Dtype> dtype;
};

[[noreturn]] void refuse(const ArrayRequest& request, const std::string& complaint) {
  throw InvalidArgumentError(std::string(request.name) + ": " + complaint);
}

/// Returns the library of a class: "numpy", "torch", …
std::string library_of(nb::handle type) {
  const auto module = nb::cast<std::string>(type.attr("__module__"));
  return module.substr(0, module.find('.'));
}

StreamView from_number(nb::handle number) {
  return {reinterpret_cast<void*>(nb::cast<std::uintptr_t>(number))};
}

StreamView current_stream(nb::handle array) {
  const nb::object source = stream_source(array);
  return source.is_none() ? StreamView{} : to_stream(source(), nb::none(), Memory::kDevice);
}

bool is_on_host(int device_type) {
  return device_type == nb::device::cpu::value || device_type == nb::device::cuda_host::value;
}

bool is_on_cuda(int device_type) {
  return device_type == nb::device::cuda::value || device_type == nb::device::cuda_managed::value;
}

/// True for a NumPy array of ml_dtypes' bfloat16. Neither DLPack nor the buffer protocol supports
/// this type.
bool is_ml_bfloat16(nb::handle array, const ArrayRequest& request) {
  if (library_of(array.type()) == "torch") return false;
  const nb::object dtype = nb::getattr(array, "dtype", nb::none());
  if (!nb::hasattr(dtype, "isnative") || nb::cast<std::string>(dtype.attr("name")) != "bfloat16" ||
      !nb::isinstance(array, nb::module_::import_("numpy").attr("ndarray")))
    return false;
  if (!nb::cast<bool>(dtype.attr("isnative")))
    refuse(request, "the bfloat16 values have another byte order; pass a copy in native order");
  return true;
}

/// True if the array's own library reports a device other than the host.
bool needs_stream(nb::handle array, const ArrayRequest& request) {
  if (!nb::hasattr(array, "__dlpack_device__")) return false;
  try {
    const nb::object device = array.attr("__dlpack_device__")();
    return !is_on_host(nb::cast<int>(device[0].attr("__index__")()));
  } catch (const nb::python_error& error) {  // e.g. PyTorch's "meta" device, unknown to DLPack
    refuse(request, nb::cast<std::string>(nb::str(error.value())));
  }
}

/// Detaches the array: PyTorch does not export tensors that require gradients.
nb::object without_autograd(nb::handle array) {
  const bool tracked =
      nb::hasattr(array, "requires_grad") && nb::cast<bool>(array.attr("requires_grad"));
  return tracked ? array.attr("detach")() : nb::borrow(array);
}

/// PyTorch exports the memory of the tensor object, and `tensor.data = other` frees this memory. An
/// alias keeps the memory alive. PyTorch exports memory without the negative bit of the tensor.
nb::object alias_of(nb::handle array, const ArrayRequest& request) {
  const bool is_tensor = nb::hasattr(array, "detach") && nb::hasattr(array, "requires_grad");
  if (is_tensor && nb::hasattr(array, "is_neg") && nb::cast<bool>(array.attr("is_neg")()))
    refuse(request, "the tensor is a view of negated values; pass tensor.resolve_neg()");
  if (!is_tensor || nb::cast<bool>(array.attr("requires_grad"))) return nb::borrow(array);
  return array.attr("detach")();
}

/// Returns the stream argument of `__dlpack__`. -1 means no ordering: the library uses the same
/// stream, or the call reads no values.
std::intptr_t consumer_stream(nb::handle array, const ArrayRequest& request) {
  if (request.use == Use::kShape) return -1;
  constexpr std::intptr_t kLegacyStream = 1;  // DLPack's number for the null stream
  const StreamView stream = to_stream(request.stream, array, Memory::kDevice);
  if (!stream_source(array).is_none() && current_stream(array).handle == stream.handle) return -1;
  const auto number = reinterpret_cast<std::intptr_t>(stream.handle);
  return number == 0 ? kLegacyStream : number;
}

/// Calls `__dlpack__` with a stream. Requests DLPack 1, which has read-only arrays, or an older
/// version if the library supports nothing newer.
nb::object exported(nb::handle array, std::intptr_t stream) {
  const nb::object method = array.attr("__dlpack__");
  try {
    return method(nb::arg("stream") = stream, nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method(nb::arg("stream") = stream);
}

/// Returns the capsule of an array on a device.
nb::object device_capsule(nb::handle array, const ArrayRequest& request) {
  const std::intptr_t stream = consumer_stream(array, request);
  try {
    return exported(without_autograd(array), stream);
  } catch (const nb::python_error& error) {
    refuse(request, nb::cast<std::string>(nb::str(error.value())));
  }
}

/// Returns the library's own reason for refusing to share the array; empty if there is none.
std::string export_complaint(nb::handle array) {
  if (!nb::hasattr(array, "__dlpack__"))
    return "a " + nb::cast<std::string>(array.type().attr("__qualname__")) +
           " is not an array; pass an array with DLPack or the buffer protocol (NumPy, PyTorch, "
           "CuPy)";
  try {
    array.attr("__dlpack__")();
  } catch (const nb::python_error& error) {
    return nb::cast<std::string>(nb::str(error.value()));
  }
  return "the array's library does not export its memory; pass a NumPy, PyTorch or CuPy array";
}

/// JAX's arrays are immutable, even in writable memory.
bool never_changes(nb::handle array) { return library_of(array.type()).compare(0, 3, "jax") == 0; }

template <typename Target>
bool import_as(nb::handle source, Imported& imported) {
  Target target;
  if (!nb::try_cast<Target>(source, target, false)) return false;
  imported = Imported(target);
  return true;
}

/// Imports `source`: `array`, a view of `array`, or its capsule.
Imported import_source(nb::handle source, nb::handle array, Access access,
                       const ArrayRequest& request) {
  Imported imported;
  const bool write = access == Access::kWrite;
  if (write && !never_changes(array) && import_as<Writable>(source, imported)) return imported;
  if (!import_as<Imported>(source, imported)) refuse(request, export_complaint(array));
  if (write)
    refuse(request, "the " + library_of(array.type()) +
                        " array is read-only; pass a writable array, such as a copy");
  return imported;
}

/// Imports a buffer through a memoryview, which adds the strides that e.g. ctypes omits.
nb::object as_memoryview(nb::handle array) {
  nb::object view = nb::steal(PyMemoryView_FromObject(array.ptr()));
  if (!view.is_valid()) nb::raise_python_error();
  return view;
}

Import import_array(nb::handle given, Access access, const ArrayRequest& request) {
  if (given.is_none()) refuse(request, "got None; pass an array");
  const nb::object alias = alias_of(given, request);
  const nb::handle array = alias;
  if (is_ml_bfloat16(array, request))
    return {import_source(array.attr("view")("uint16"), array, access, request), Dtype::kBf16};
  if (needs_stream(array, request))
    return {import_source(device_capsule(array, request), array, access, request), {}};
  if (!nb::hasattr(array, "__dlpack__") && PyObject_CheckBuffer(array.ptr()))
    return {import_source(as_memoryview(array), array, access, request), {}};
  return {import_source(array, array, access, request), {}};
}

std::string dtype_text(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const std::string bits = std::to_string(dtype.bits);
  switch (static_cast<Code>(dtype.code)) {
    case Code::Int:
      return "int" + bits;
    case Code::UInt:
      return "uint" + bits;
    case Code::Float:
      return "float" + bits;
    case Code::Complex:
      return "complex" + bits;
    case Code::Bool:
      return "bool";
    default:
      return "DLPack type " + std::to_string(dtype.code) + " of " + bits + " bits";
  }
}

Dtype gradient_dtype(const Import& import, const ArrayRequest& request) {
  if (import.dtype) return *import.dtype;
  const nb::dlpack::dtype dtype = import.array.dtype();
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return dtype.code == static_cast<std::uint8_t>(code) && dtype.bits == bits && dtype.lanes == 1;
  };
  if (is(nb::dlpack::dtype_code::Float, 32)) return Dtype::kF32;
  if (is(nb::dlpack::dtype_code::Float, 16)) return Dtype::kF16;
  if (is(nb::dlpack::dtype_code::Bfloat, 16)) return Dtype::kBf16;
  refuse(request, "the dtype is " + dtype_text(dtype) +
                      "; convert the array to float32, bfloat16 or float16 (NumPy: ml_dtypes has "
                      "bfloat16)");
}

std::vector<std::size_t> shape_of(const Imported& array) {
  std::vector<std::size_t> shape(array.ndim());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) shape[axis] = array.shape(axis);
  return shape;
}

/// Returns the axes with more than one value in memory order, the outermost first. The strides of
/// other axes have no meaning.
std::vector<std::size_t> axes_of(const Imported& array) {
  std::vector<std::size_t> axes;
  if (array.size() < 2) return axes;
  for (std::size_t axis = 0; axis < array.ndim(); ++axis)
    if (array.shape(axis) != 1) axes.push_back(axis);
  std::stable_sort(axes.begin(), axes.end(), [&](std::size_t left, std::size_t right) {
    return array.stride(left) > array.stride(right);
  });
  return axes;
}

/// True if these axes fill memory without gaps.
bool is_dense(const Imported& array, const std::vector<std::size_t>& axes) {
  std::int64_t expected = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (array.stride(*axis) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(*axis));
  }
  return true;
}

/// `axes`: the result of axes_of.
void check_layout(const Imported& array, const std::vector<std::size_t>& axes,
                  const ArrayRequest& request) {
  const bool any_order = request.layout == Layout::kDense;
  if (is_dense(array, axes) && (any_order || std::is_sorted(axes.begin(), axes.end()))) return;
  refuse(request, any_order ? "the array's memory has gaps or overlaps; pass a copy"
                            : "the array is not contiguous; pass tensor.contiguous() or "
                              "numpy.ascontiguousarray(array)");
}

Memory memory_of(const Imported& array, const ArrayRequest& request) {
  if (is_on_host(array.device_type())) return Memory::kHost;
  if (request.on_host) refuse(request, "the array is on a device; pass a copy in host memory");
  if (is_on_cuda(array.device_type())) return Memory::kDevice;
  refuse(request, "the array is on a device of DLPack type " + std::to_string(array.device_type()) +
                      "; copy it to host memory or to a CUDA device");
}

/// Returns everything except the span, which each importer makes differently.
template <typename Span>
Array<Span> described(const Imported& array, const ArrayRequest& request) {
  std::vector<std::size_t> axes = axes_of(array);
  check_layout(array, axes, request);
  const Memory memory = memory_of(array, request);
  return {{},
          memory,
          memory == Memory::kHost ? -1 : array.device_id(),
          shape_of(array),
          std::move(axes),
          array};
}

/// Writable only if the importer requested a writable array from nanobind.
std::byte* pointer_to(const Imported& array) {
  return static_cast<std::byte*>(const_cast<void*>(array.data()));
}

template <typename Span>
Array<Span> values_of(nb::handle source, Access access, const ArrayRequest& request) {
  const Import import = import_array(source, access, request);
  const Dtype dtype = gradient_dtype(import, request);
  auto array = described<Span>(import.array, request);
  array.span = Span(pointer_to(import.array), import.array.size(), dtype, array.memory);
  return array;
}

template <typename Span>
Array<Span> bytes_of(nb::handle source, Access access, const ArrayRequest& request) {
  const Import import = import_array(source, access, request);
  auto array = described<Span>(import.array, request);
  array.span = Span(pointer_to(import.array), import.array.nbytes());
  return array;
}

}  // namespace

nb::object stream_source(nb::handle array) {
  for (const nb::handle type : array.type().attr("__mro__")) {
    const std::string library = library_of(type);
    if (library != "torch" && library != "cupy") continue;
    const nb::object cuda = nb::module_::import_(library.c_str()).attr("cuda");
    if (library == "cupy") return cuda.attr("get_current_stream");
    const nb::object bind = nb::module_::import_("functools").attr("partial");
    return bind(cuda.attr("current_stream"), array.attr("device"));
  }
  return nb::none();
}

nb::object stream_of_call(nb::handle stream, nb::handle first, const char* name) {
  if (!stream.is_none() || !needs_stream(first, {.name = name})) return nb::borrow(stream);
  return nb::int_(reinterpret_cast<std::uintptr_t>(current_stream(first).handle));
}

StreamView to_stream(nb::handle stream, nb::handle array, Memory memory) {
  if (stream.is_none()) return memory == Memory::kHost ? StreamView{} : current_stream(array);
  if (nb::isinstance<nb::int_>(stream)) return from_number(stream);
  if (nb::hasattr(stream, "cuda_stream")) return from_number(stream.attr("cuda_stream"));
  if (nb::hasattr(stream, "__cuda_stream__"))
    return from_number(stream.attr("__cuda_stream__")()[1]);
  if (nb::hasattr(stream, "ptr")) return from_number(stream.attr("ptr"));
  throw InvalidArgumentError(
      "stream: pass a PyTorch or CuPy stream, an int (cudaStream_t) or None; got a " +
      nb::cast<std::string>(stream.type().attr("__qualname__")));
}

std::vector<Buffer> align_frames(std::span<ConstByteSpan> frames, Memory memory) {
  std::vector<Buffer> copies;
  if (memory == Memory::kDevice) return copies;
  for (ConstByteSpan& frame : frames) {
    if (reinterpret_cast<std::uintptr_t>(frame.data()) % kSectionAlignment == 0) continue;
    Buffer& copy = copies.emplace_back(frame.size());
    std::memcpy(copy.pointer(), frame.data(), frame.size());
    frame = copy.span();
  }
  return copies;
}

MatrixShape matrix_of(std::span<const std::size_t> shape) {
  MatrixShape matrix;
  for (const std::size_t extent : shape)
    if (__builtin_mul_overflow(matrix.count, extent, &matrix.count))
      matrix.count = std::numeric_limits<std::size_t>::max();  // refused later
  if (!shape.empty()) matrix.rows = shape.front();
  if (shape.size() > 1 && matrix.rows != 0) matrix.columns = matrix.count / matrix.rows;
  return matrix;
}

std::uint32_t order_of(const std::vector<std::size_t>& axes,
                       const std::vector<std::size_t>& shape) {
  if (std::is_sorted(axes.begin(), axes.end())) return 0;
  Signature signature;
  for (const std::size_t extent : shape) signature.add(extent);
  for (const std::size_t axis : axes) signature.add(static_cast<std::uint32_t>(axis));
  return static_cast<std::uint32_t>(signature.value()) | 1u;
}

Array<ConstValueSpan> read_values(nb::handle array, const ArrayRequest& request) {
  return values_of<ConstValueSpan>(array, Access::kRead, request);
}

Array<ValueSpan> write_values(nb::handle array, const ArrayRequest& request) {
  return values_of<ValueSpan>(array, Access::kWrite, request);
}

Array<ConstByteSpan> read_bytes(nb::handle array, const ArrayRequest& request) {
  return bytes_of<ConstByteSpan>(array, Access::kRead, request);
}

Array<ByteSpan> write_bytes(nb::handle array, const ArrayRequest& request) {
  return bytes_of<ByteSpan>(array, Access::kWrite, request);
}

}  // namespace tersor::python
