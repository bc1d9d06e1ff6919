"""The examples of public docstrings run, except examples for a framework or another rank.

NumPy's examples run on two ranks of this process, PyTorch's on a process group of one rank. Names
without a definition in the example come from ``NUMPY`` and ``TORCH``.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import datetime
import doctest
import functools
import importlib
import inspect
import json
import os
import pathlib
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from reference import modules_of_the_reference

import ranks
import tersor
import tersor.check
import tersor.local

# Modules whose examples need a framework or a launcher. Other tests make the same calls.
FOREIGN = {
    "tersor.federated.flower": "test_flower.py, test_flower_secure.py",
    "tersor.federated.nvflare": "test_nvflare.py",
    "tersor.integrations.transformers": "test_transformers.py",
    "tersor.mpi": "test_mpi.py",
    "tersor.ray": "test_ray.py",
    "tersor.tensorflow": "test_tensorflow.py",
    "tersor.torch.ft": "test_torchft.py",
}
PAIR = "test_a_server_and_a_worker_run_together runs the example"
BACKEND = "needs a process without a process group"
# Skipped examples. A name with a dot at the end stands for all names with this beginning.
SKIPPED = {
    "tersor.ParameterClient": PAIR,
    "tersor.ParameterServer": PAIR,
    "tersor.ServerOptions": "needs a rank that serves",
    "tersor.check.main": "takes ten seconds",
    "tersor.torch.Gossip": "needs a neighbour",
    "tersor.torch.Gossip.": "needs a neighbour",
    "tersor.torch.HookState": "needs Lightning",
    "tersor.torch.HookState.reduce": "needs a bucket of DDP",
    "tersor.torch.ParameterClient": "needs a server on another rank",
    "tersor.torch.ParameterServer": "needs a worker on another rank",
    "tersor.torch.backend.TersorGroup": BACKEND,
    "tersor.torch.backend.TersorGroup.": BACKEND,
    "tersor.torch.backend.configure": BACKEND,
    "tersor.torch.backend.register": BACKEND,
    "tersor.torch.hvd.alltoall": "needs two ranks",
    "tersor.torch.hvd.local_rank": "needs a device",
    "tersor.torch.pipeline.": "needs two stages",
    "tersor.torch.run.main": "runs a script",
}
EXAMPLE = re.compile(r"^Example:(?P<code>:?)\n(?P<text>(?: {4}.*\n?|\n)+)", re.MULTILINE)


def public_docstrings() -> Iterator[tuple[str, str]]:
    """The names and docstrings of public functions, classes and methods in Python, each once."""
    seen: set[int] = set()
    for module_name in modules_of_the_reference():
        with contextlib.suppress(ImportError, tersor.Error):  # an old or missing framework
            if module_name not in FOREIGN:
                module = importlib.import_module(module_name)
                for name in getattr(module, "__all__", ()):
                    yield from _documented(f"{module_name}.{name}", getattr(module, name), seen)


def _documented(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    value = getattr(value, "__func__", getattr(value, "_function", value))
    module = str(getattr(value, "__module__", ""))
    is_own = module.startswith("tersor.") and module != "tersor._core"
    if not (is_own and (inspect.isfunction(value) or inspect.isclass(value))) or id(value) in seen:
        return
    seen.add(id(value))
    text = inspect.cleandoc(value.__doc__ or "")
    if text and not text.startswith(("Deprecated", "The old name")):
        yield name, text
    for base in reversed(value.__mro__) if inspect.isclass(value) else ():
        for key, one in vars(base).items():
            if not key.startswith("_"):
                yield from _documented(f"{name}.{key}", one, seen)


DOCSTRINGS = dict(public_docstrings())
EXAMPLES = {name: found for name, text in DOCSTRINGS.items() if (found := EXAMPLE.search(text))}


def is_skipped_by(key: str, name: str) -> bool:
    return name.startswith(key) if key.endswith(".") else name == key


def module_of(name: str) -> str:
    """The public module of a public name."""
    return max((one for one in modules_of_the_reference() if name.startswith(f"{one}.")), key=len)


def parts_of(name: str) -> list[tuple[str, str]]:
    """The statements of an example, each with the expected result."""
    text = textwrap.dedent(EXAMPLES[name]["text"])
    if EXAMPLES[name]["code"]:
        return [(text, "")]
    return [(one.source, one.want) for one in doctest.DocTestParser().get_examples(text)]


class Scene:
    """The names of an example, made at the first use."""

    def __init__(self, name: str, makers: dict[str, Callable[[Scene], Any]], **known: Any) -> None:
        self.name, self._makers, self.known = name, makers, known

    def __getattr__(self, name: str) -> Any:
        if name not in self.known:
            self.known[name] = self._makers[name](self)
        return self.known[name]

    def run(self) -> None:
        """Runs the example, and compares results with the expected results."""
        parts = parts_of(self.name)
        module = importlib.import_module(module_of(self.name))
        names: dict[str, Any] = {name: getattr(module, name) for name in module.__all__}
        given = Given("".join(source for source, _ in parts)).names
        names |= {name: getattr(self, name) for name in sorted(given & self._makers.keys())}
        for source, wanted in parts:
            if wanted:
                assert repr(eval(source, names)) == wanted.strip(), source
            else:
                exec(compile(source, self.name, "exec"), names)
        if "client" in self.known and not self.name.endswith(".leave"):
            self.client.leave()


class Given(ast.NodeVisitor):
    """The names of a program that are read before they are set."""

    def __init__(self, source: str) -> None:
        self.names, self._own = set[str](), set[str]()
        self.visit(ast.parse(source))

    def visit_Assign(self, node: ast.Assign) -> None:  # as ast calls it
        for one in (node.value, *node.targets):
            self.visit(one)

    def visit_Name(self, node: ast.Name) -> None:
        is_read = isinstance(node.ctx, ast.Load)
        (self.names if is_read and node.id not in self._own else self._own).add(node.id)


def always(value: Any) -> Callable[[Scene], Any]:
    return lambda _: value


def ones(*shape: int, dtype: Any = np.float32) -> Callable[[Scene], Any]:
    return lambda _: np.ones(shape, dtype)


def imported(name: str) -> Callable[[Scene], Any]:
    """A module, or an attribute of a module."""
    module, _, attribute = name.partition(":")
    return lambda _: functools.reduce(
        getattr, filter(None, [attribute]), importlib.import_module(module)
    )


def gossip_of(scene: Scene) -> Any:
    made = tersor.Gossip(scene.transport, "ring")
    if not scene.name.endswith(".add"):
        made.add("w", scene.parameter)
    return made


def server_of(scene: Scene) -> Any:
    made = tersor.ParameterServer(scene.transport, scene.parameters, **BOTH)
    if scene.name.endswith(".wait"):
        client_of(scene, made).leave()
    return made


def client_of(scene: Scene, server: tersor.ParameterServer | None = None) -> Any:
    own = server or scene.server
    return tersor.ParameterClient(scene.transport, scene.parameters, server=own, **BOTH)


BOTH: dict[str, Any] = {"servers": (0, 1), "workers": (0, 1)}
NUMPY: dict[str, Callable[[Scene], Any]] = {
    **{name: imported(name) for name in ("json", "numpy", "os", "pathlib")},
    "datetime": always(datetime),
    "np": always(np),
    "tersor": always(tersor),
    "transport": always(None),
    **dict.fromkeys(("gradient", "input", "weights", "whole"), ones(8192)),
    "total": lambda scene: (
        ones(64, dtype=np.uint16)(scene) if ".sums." in scene.name else scene.input
    ),
    "shard": ones(4096),
    **dict.fromkeys(("tokens", "output"), ones(8, 1024)),
    **dict.fromkeys(("parameter", "update", "weight"), ones(64)),
    **dict.fromkeys(("codes", "mask"), ones(64, dtype=np.uint16)),
    "clients": always(2),
    "codec": always(tersor.Codec("int8")),
    "payload": lambda scene: scene.codec.encode(scene.gradient),
    "payloads": lambda scene: [scene.payload, scene.payload],
    "header": always(types.SimpleNamespace(count=8, dtype="f32")),
    "compute": always(print),
    **dict.fromkeys(("next_batch", "stream"), always(None)),
    "parameters": lambda scene: {"w": scene.parameter},
    "gradients": lambda scene: {name: np.ones_like(one) for name, one in scene.parameters.items()},
    "gossip": gossip_of,
    "server": server_of,
    "client": client_of,
}


def write_report() -> None:
    """The file that the examples of ``tersor.check`` read."""
    codec = tersor.check.CodecResult("int8", "cpu", 8.25, 1e-9, 1e-9, 1e-5)
    link = tersor.check.LinkResult("int8", 1 << 20, 1e-3, 5)
    report = tersor.check.Report("0", "", {}, 2, "tcp", [codec], [link], ["int8 pays"])
    pathlib.Path("check.json").write_text(json.dumps(dataclasses.asdict(report)))


def of_torch(expression: str) -> Callable[[Scene], Any]:
    """A value of PyTorch."""
    return lambda scene: eval(expression, {"torch": importlib.import_module("torch"), "own": scene})


def model_of(scene: Scene) -> Any:
    """A model; wrapped if the example compresses the model."""
    from torch import nn

    made: Any = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    object.__setattr__(made, "head", nn.Linear(4, 4))  # a later part of the model
    if scene.name.endswith((".ShardedOptions", ".ShardedHandle")):
        return scene.fully_shard(made)
    is_wrapped = scene.name.endswith((".AdvancedOptions", ".ExchangeOptions"))
    return scene.DistributedDataParallel(made) if is_wrapped else made


def shard_of(_: Scene) -> Any:
    """``fully_shard`` over the group's rank, also where there is a GPU."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return functools.partial(fully_shard, mesh=init_device_mesh("cpu", (1,)))


def handle_of(scene: Scene) -> Any:
    """A handle after a step: of FSDP2 for examples of FSDP2, otherwise of DDP."""
    sharded = "Sharded" in scene.name
    model = scene.fully_shard(scene.model) if sharded else scene.ddp_model
    own: Any = {"transactional": True}
    if not sharded:
        own["advanced"] = tersor.AdvancedOptions(trace="trace.json")
    made: Any = importlib.import_module("tersor.torch").compress(model, "int8+ef", **own)
    model(scene.batch).sum().backward()
    scene.known["loss"] = model(scene.batch).sum()
    for path in ("residuals.0.pt", scene.path):
        scene.torch.save(made.state_dict(), path)
    return made


def optimizer_of(scene: Scene) -> Any:
    """PyTorch's SGD, or an optimizer of the example's class."""
    optim = importlib.import_module("tersor.torch.optim")
    made: Any = scene.torch.optim.SGD(scene.model.parameters(), lr=0.1)
    named = scene.model.named_parameters()
    if scene.name.startswith("tersor.torch.DistributedOptimizer."):
        made = optim.DistributedOptimizer(made, named, codec="int8+ef", transactional=True)
    elif found := re.search(r"\.(Compressed\w+)\.", scene.name):
        made = getattr(optim, found[1])(named)
    else:
        return made
    scene.torch.save(made.state_dict("exact"), scene.path)
    return made


def outer_of(scene: Scene) -> Any:
    made: Any = importlib.import_module("tersor.torch").DiLoCo(scene.model)
    scene.torch.save(made.state_dict(), scene.path)
    return made


def served_model(scene: Scene) -> Any:
    kind = importlib.import_module("tersor.torch").ParameterServer
    return kind(scene.model, lambda parts: scene.SGD(parts, lr=0.1), workers=(0,))


def model_client(scene: Scene) -> Any:
    kind = importlib.import_module("tersor.torch").ParameterClient
    return kind(scene.model, workers=(0,), server=scene.server)


TORCH: dict[str, Callable[[Scene], Any]] = {
    **NUMPY,
    **{name: imported(name) for name in ("prometheus_client", "torch")},
    "CompressedAdamW": imported("tersor.torch:CompressedAdamW"),
    "DistributedDataParallel": imported("torch.nn.parallel:DistributedDataParallel"),
    "SGD": imported("torch.optim:SGD"),
    "dist": imported("torch.distributed"),
    "fully_shard": shard_of,
    "hvd": imported("tersor.torch.hvd"),
    **dict.fromkeys(("gradient", "shard", "tensor"), of_torch("torch.ones(8192)")),
    **dict.fromkeys(("weights", "whole"), of_torch("torch.ones(8192)")),
    **dict.fromkeys(("output", "rows", "table", "tokens"), of_torch("torch.ones(8, 1024)")),
    "parameter": of_torch("[one.sum().backward() or one for one in own.model.parameters()][0]"),
    **dict.fromkeys(("accuracy", "loss"), of_torch("own.model(own.batch).sum()")),
    "batch": of_torch("torch.ones(2, 64)"),
    "predictions": of_torch("torch.ones(3)"),
    "model": model_of,
    "module": lambda scene: scene.model,
    "ddp_model": lambda scene: scene.DistributedDataParallel(scene.model),
    "state": lambda scene: importlib.import_module("tersor.torch").HookState(scene.model, "int8"),
    "handle": handle_of,
    **dict.fromkeys(("inner", "optimizer"), optimizer_of),
    "outer": outer_of,
    "server": served_model,
    "client": model_client,
    "loss_of": lambda scene: lambda model, batch=scene.batch: model(batch).sum(),
    **dict.fromkeys(("loss_is_bad", "loss_is_too_high"), always(True)),
    **dict.fromkeys(("epoch", "rank", "step"), always(0)),
    "writer": always(types.SimpleNamespace(add_scalar=lambda *_: None)),
    "path": always("state.pt"),
    "folder": always("checkpoint"),
    "train_one_step": always(print),
}  # fmt: skip


def with_torch(_rank: int, _count: int, name: str, folder: str) -> None:
    """Runs an example of PyTorch on the only rank of a process group."""
    hvd, before = importlib.import_module("tersor.torch.hvd"), os.getcwd()
    os.chdir(folder)
    try:
        if ".hvd." in name and not name.endswith(".init"):
            hvd.init()
        Scene(name, TORCH).run()
    finally:
        hvd.shutdown()
        os.chdir(before)


def test_every_public_docstring_has_an_example() -> None:
    assert not DOCSTRINGS.keys() - EXAMPLES.keys()


def test_skipped_examples_exist() -> None:
    known = {module_of(name) for name in DOCSTRINGS}  # others need a missing package
    for key in SKIPPED:
        assert module_of(f"{key}.") not in known or any(is_skipped_by(key, n) for n in EXAMPLES), (
            key
        )


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_runs(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(source for source, _ in parts_of(name))
    compile(text, name, "exec")
    for key, reason in SKIPPED.items():
        if is_skipped_by(key, name):
            pytest.skip(reason)
    if ".png" in text:
        pytest.importorskip("matplotlib")
    if name.startswith(("tersor.prometheus.", "tersor.torch.")) or "tersor.torch" in text:
        pytest.importorskip("torch")
        ranks.run(with_torch, 1, name, str(tmp_path), fresh=".backend." in name)
        return
    monkeypatch.chdir(tmp_path)
    write_report()
    tersor.local.run(2, lambda transport: Scene(name, NUMPY, transport=transport).run())


def test_a_server_and_a_worker_run_together() -> None:
    names = ("tersor.ParameterServer", "tersor.ParameterClient")
    tersor.local.run(2, lambda one: Scene(names[one.rank], NUMPY, transport=one).run())
