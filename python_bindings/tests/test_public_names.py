"""An import of ``tersor.torch``, and the public names of modules."""

import importlib
import inspect
import pathlib
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from reference import modules_of_the_reference

pytest.importorskip("torch")


def test_import_does_not_load_the_compiler() -> None:
    """The import of ``torch._dynamo`` takes longer than the imports of all Tersor's other
    modules."""
    program = """
import sys
import torch
before = set(sys.modules)
for name in ["optim", "diloco", "fsdp", "hvd", "run", "pipeline"]:
    __import__(f"tersor.torch.{name}")
try:
    import tersor.torch.backend
except ImportError as older:
    assert "needs PyTorch" in str(older)
added = [name for name in sys.modules if name.startswith("torch._") and name not in before]
print({name.split(".")[1] for name in added} & {"_dynamo", "_inductor", "_functorch"})
"""
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert ran.stdout.strip() == b"set()"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads is of Python 3.11")
def test_compress_overloads_for_ddp_exclude_sharding_options() -> None:
    typed: Any = typing
    torch = importlib.import_module("tersor.torch")
    ddp = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    hints = [typing.get_type_hints(one) for one in typed.get_overloads(torch.compress)]
    for_ddp = [one for one in hints if issubclass(ddp, one["model"])]
    assert len(for_ddp) == len(hints) - 1 == 2
    for one in for_ddp:
        assert "weights_codec" not in one
        assert torch.fsdp.ShardedOptions not in typing.get_args(one.get("advanced"))


PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "tersor"


def test_reference_covers_all_public_modules() -> None:
    files = (path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))
    parts = [path.with_suffix("").parts for path in files]
    names = [one[:-1] if one[-1] == "__init__" else one for one in parts]
    public = {".".join(one) for one in names if not any(part.startswith("_") for part in one)}
    inner = ("tersor.bench", "tersor.federated.flower.")
    found = {one for one in public if not one.startswith(inner)} - {"tersor.integrations"}
    assert found <= set(modules_of_the_reference())


@pytest.mark.parametrize("name", modules_of_the_reference())
def test_module_exposes_only_public_names(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as absent:
        pytest.skip(str(absent))
    shown = [one for one in dir(module) if not one.startswith("_")]
    if not hasattr(module, "__all__"):  # a package of modules, of which some may be imported
        shown = [one for one in shown if f"{name}.{one}" not in sys.modules]
    assert shown == sorted(set(getattr(module, "__all__", ())) - {"__version__"})


def public_functions() -> Iterator[tuple[str, Any]]:
    """All public functions and classes, by name."""
    for module in ("tersor", "tersor.torch", "tersor.torch.hvd"):
        found = importlib.import_module(module)
        for name in found.__all__:
            value = getattr(found, name)
            if callable(value) and not getattr(value, "_is_protocol", False):
                yield f"{module}.{name}", value


def test_signatures_show_all_arguments() -> None:
    for name, value in public_functions():
        try:
            shown = inspect.signature(value).parameters.values()
        except ValueError:  # a class or function of C++, whose text has the signature
            continue
        assert not any(one.name.startswith("_") for one in shown), name
        assert not any(one.kind is one.VAR_POSITIONAL for one in shown), name
        anything = [one for one in shown if one.kind is one.VAR_KEYWORD]
        assert all(one.annotation not in ("Any", Any) for one in anything), name


def test_frame_and_object_walks_stay_in_known_files() -> None:
    walks = re.compile(r"\b(currentframe|_getframe|get_objects|get_referrers)\(")
    files = {path.name for path in PACKAGE.rglob("*.py") if walks.search(path.read_text())}
    assert files == {"_compat.py", "_renamed.py", "patches.py"}  # two look for the program's line
