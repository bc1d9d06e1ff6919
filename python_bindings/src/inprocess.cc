// Ranks as threads of one process.
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/patient_transport.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <tersor/inprocess.h>

#include <new>
#include <string_view>

namespace tersor::python {

void bind_inprocess(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<InProcessWorld>(module, "InProcessWorld",
                             "A group of ranks in this process, over an emulated link.")
      .def(
          "__init__",
          [](InProcessWorld* world, int ranks, std::string_view link) {
            new (world) InProcessWorld(ranks, parse_link(link));
          },
          "ranks"_a, "link"_a = "none")
      .def_prop_ro("ranks", &InProcessWorld::ranks)
      .def(
          "transport",
          [](InProcessWorld& world, int rank) {
            return make_patient([&] { return world.transport(rank); });
          },
          "rank"_a, nb::keep_alive<0, 1>(),
          "The transport of one rank, once for each; for that rank's thread.");
}

}  // namespace tersor::python
