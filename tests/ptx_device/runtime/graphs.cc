// Functions for graphs. Graphs are created only by captures.
#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/captures.h"
#include "tests/ptx_device/runtime/launches.h"
#include "tests/ptx_device/runtime/pauses.h"
#include "tests/ptx_device/runtime/queue.h"

using namespace ptx;

namespace {

template <class Handle>
Executable* executable_of(Handle handle) {
  return reinterpret_cast<Executable*>(handle);
}

cudaError_t instantiate(cudaGraphExec_t* executable, cudaGraph_t graph) {
  auto* made = new Executable{executable_of(graph)->graph};
  *executable = reinterpret_cast<cudaGraphExec_t>(made);
  return cudaSuccess;
}

cudaError_t end(const Executable* executable) {
  if (executable == nullptr) return done(cudaErrorInvalidValue);
  delete executable;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  PTX_API;
  return instantiate(executable, graph);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  PTX_API;
  return instantiate(executable, graph);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  PTX_API;
  const auto graph = executable_of(executable)->graph;
  const std::uint64_t random = order_seed() * 77 + next_launch();
  return done(queue(stream, [graph, random] { graph->run(random); }));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  PTX_API_ALWAYS;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  PTX_API_ALWAYS;
  if (nodes != nullptr) return done(cudaErrorNotSupported);
  *count = executable_of(graph)->graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { PTX_API_ENDS(end(executable_of(graph))); }

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  PTX_API_ENDS(end(executable_of(executable)));
}

}  // extern "C"
