"""The public surface: the Python modules and C++ headers of the reference, by page."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pathlib
import types

from sphinx.ext.autodoc.mock import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Public Python modules. The site omits modules that the build lacks.
MODULES = (
    "tersor",
    "tersor.codec",
    "tersor.collectives",
    "tersor.reducer",
    "tersor.tuner",
    "tersor.arrays",
    "tersor.check",
    "tersor.local",
    "tersor.mpi",
    "tersor.prometheus",
    "tersor.torch",
    "tersor.torch.optim",
    "tersor.torch.diloco",
    "tersor.torch.fsdp",
    "tersor.torch.backend",
    "tersor.torch.ft",
    "tersor.torch.hvd",
    "tersor.torch.run",
    "tersor.torch.pipeline",
    "tersor.delta",
    "tersor.server",
    "tersor.gossip",
    "tersor.federated",
    "tersor.federated.flower",
    "tersor.federated.nvflare",
    "tersor.federated.sums",
    "tersor.ray",
    "tersor.tensorflow",
    "tersor.integrations.transformers",
)

# Frameworks that Tersor's modules import. The site's environment may lack a framework.
FOREIGN = ("Crypto", "cryptography", "flwr", "nvflare", "ray", "tensorflow", "torchft", "transformers")

# The C++ pages: file name, title, headers. Each public header is on one page.
HEADERS = (
    ("collectives", "Collectives", ("collectives", "sending", "agreement", "modes")),
    ("reducer", "Gradient reducer", ("reducer",)),
    ("choices", "Automatic choices", ("auto", "allocate")),
    ("transports", "Transports", ("transport", "inprocess", "tcp", "mpi", "nccl", "network")),
    ("delta", "Weight deltas", ("delta",)),
    ("server", "Parameter server", ("server",)),
    ("gossip", "Gossip", ("gossip",)),
    (
        "memory",
        "Values, memory and streams",
        ("span", "dtype", "buffer", "align", "stream", "threads"),
    ),
    ("errors", "Errors and versions", ("error", "version", "abi", "isa")),
    ("codec", "Codec interface", ("codec", "spec", "wire", "code_sections", "accumulators", "lanes")),
    (
        "formats",
        "Payload formats",
        tuple(
            f"codecs/{name}"
            for name in ("none", "bf16", "f16", "scaled_codes", "int8", "int4", "intsum", "topk",
                         "blocktopk", "hadamard", "lowrank", "entropy", "mxfp8", "nvfp4")
        ),
    ),
)  # fmt: skip
EVERYTHING = ("tersor",)  # a header of includes


def modules() -> list[str]:
    """The public modules of this build."""
    return [name for name in MODULES if installed(name)]


def installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def missing_headers() -> list[str]:
    """Differences between HEADERS and the public headers of the source tree."""
    folder = ROOT / "include" / "tersor"
    found = {str(path.relative_to(folder))[:-2] for path in folder.rglob("*.h")}
    listed = [header for _, _, headers in HEADERS for header in headers]
    twice = {header for header in listed if listed.count(header) > 1}
    return sorted((found - set(EVERYTHING)) ^ set(listed) | twice)


def absent() -> list[str]:
    """The missing packages of FOREIGN."""
    return [name for name in FOREIGN if not installed(name)]


def imported(name: str) -> types.ModuleType:
    """Imports a module, with mocks for missing packages of FOREIGN."""
    version = importlib.metadata.version
    stand_ins = absent()
    importlib.metadata.version = lambda package: "999" if package in stand_ins else version(package)
    try:
        with mock(stand_ins):
            return importlib.import_module(name)
    finally:
        importlib.metadata.version = version


def members(module: types.ModuleType) -> list[tuple[str, object]]:
    """The names of __all__ or, without __all__, the public names defined in the module."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        own = vars(module).items()
        listed = [
            name for name, value in own if getattr(value, "__module__", None) == module.__name__
        ]
    return [(name, getattr(module, name)) for name in listed if not name.startswith("_")]
