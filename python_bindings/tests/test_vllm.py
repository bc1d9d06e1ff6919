"""Changes and host copies in vLLM's loader of patches, on a CPU.

``pip install --no-deps vllm`` is enough, because the loader needs only PyTorch. Tests take other
classes from the source, without an import of the module.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import pathlib
import sys
import types
from typing import Any

import pytest
from pages import programs

from tersor import delta

VLLM = importlib.util.find_spec("vllm")
pytestmark = [pytest.mark.long, pytest.mark.skipif(VLLM is None, reason="no vLLM")]
torch = pytest.importorskip("torch")
ENGINE = "vllm.distributed.weight_transfer.sparse_nccl_engine"
PAGE = "docs/how-to/weight-deltas.md"


def file_of(module: str) -> pathlib.Path:
    assert VLLM is not None
    assert VLLM.submodule_search_locations is not None
    return pathlib.Path(VLLM.submodule_search_locations[0], *module.split(".")[1:]).with_suffix(
        ".py"
    )


@pytest.fixture
def loader() -> Any:
    """The module ``checkpoint_weight_patch``, without the package around it."""
    name = "vllm.model_executor.model_loader.checkpoint_weight_patch"
    spec = importlib.util.spec_from_file_location("checkpoint_weight_patch", file_of(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module of vLLM's engine, with ``SparseWeightPatch`` and the check of patches alone."""
    module = types.ModuleType(ENGINE)
    tree = ast.parse(file_of(ENGINE).read_text())
    wanted = ("SparseWeightPatch", "_validate_patch")
    found = [one for one in ast.walk(tree) if getattr(one, "name", "") in wanted]
    for one in found:
        if isinstance(one, ast.FunctionDef):
            one.decorator_list.clear()  # a static method
    names = {"dataclass": dataclasses.dataclass, "torch": torch}
    module.__dict__.update(names)
    code = compile(ast.Module(found, []), ENGINE, "exec", dont_inherit=True)  # type: ignore[arg-type]
    exec(code, module.__dict__)
    for parent in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, ENGINE, module)
    return module


class Fused(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model with a loader like vLLM's: three tensors of the checkpoint become one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Parameter(torch.zeros(3 * 40, 64, dtype=torch.bfloat16))
        self.norm = torch.nn.Parameter(torch.zeros(64, dtype=torch.bfloat16))

    def load_weights(self, weights: Any) -> set[str]:
        names = set()
        for name, value in weights:
            names.add(name)
            if name == "norm":
                self.norm.data.copy_(value)
            else:
                self.qkv.data.narrow(0, 40 * "qkv".index(name), 40).copy_(value)
        return names

    def bits(self) -> Any:
        both = torch.cat([self.qkv.detach().reshape(-1), self.norm.detach()])
        return both.view(torch.int16)


def versions() -> tuple[dict[str, Any], dict[str, Any]]:
    torch.manual_seed(0)
    base = {name: torch.randn(40, 64).to(torch.bfloat16) for name in "qkv"}
    base["norm"] = torch.ones(64, dtype=torch.bfloat16)
    new = {name: value.clone() for name, value in base.items()}
    for name in "qk":
        new[name].view(torch.int16)[torch.rand(40, 64) < 0.03] += 1
    new["q"][0, :4] = torch.tensor([-0.0, torch.inf, -torch.inf, 0.0])
    return base, new


def test_patches_reproduce_the_new_version_bit_for_bit(engine: Any, loader: Any) -> None:
    base, new = versions()
    model, expected = Fused(), Fused()
    model.load_weights(base.items())
    expected.load_weights(new.items())
    sent: list[Any] = []
    known = {
        "weights": base, "received": delta.encode(base, new), "device": "cpu",
        "engine": types.SimpleNamespace(send_weights=sent.extend), "tersor": sys.modules["tersor"],
    }  # fmt: skip
    [program] = programs(PAGE, "vllm")
    exec(program, known)
    assert [patch.name for patch in sent] == ["q", "k"]
    patches = []
    for patch in sent:
        engine._validate_patch(patch)  # of the trainer's engine
        shape, dtype = tuple(patch.full_shape), patch.values.dtype
        made = loader.CheckpointWeightPatch(patch.name, shape, dtype, patch.values, patch.indices)
        patches.append(made)
    assert loader.load_checkpoint_weight_patches(model, patches) == {"q", "k"}
    assert torch.equal(model.bits(), expected.bits())
    assert all(
        torch.equal(base[name].view(torch.int16), new[name].view(torch.int16)) for name in new
    )


def test_vllm_rejects_nan_as_a_new_value(loader: Any) -> None:
    base, new = versions()
    new["k"][3, 3] = torch.nan
    indices, values = delta.changes(base, delta.encode(base, new))["k"]
    patch = loader.CheckpointWeightPatch("k", (40, 64), values.dtype, values, indices)
    with pytest.raises(ValueError, match="NaN"):
        loader.load_checkpoint_weight_patches(Fused(), [patch])


def test_host_copy_loads_as_whole_tensors(loader: Any, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("safetensors")
    base, new = versions()
    new["v"][1, 1] = torch.nan  # which whole tensors may have
    publisher, receiver = delta.Publisher(tmp_path), delta.Receiver(tmp_path)
    host = {name: torch.zeros_like(value) for name, value in base.items()}
    for number, value in enumerate((base, new)):
        publisher.publish(number, value)
        receiver.update(host)
    model, expected = Fused(), Fused()
    expected.load_weights(new.items())
    patches = [
        loader.CheckpointWeightPatch(name, tuple(value.shape), value.dtype, value.flatten())
        for name, value in host.items()
    ]
    loader.load_checkpoint_weight_patches(model, patches)
    assert torch.equal(model.bits(), expected.bits())
    model = Fused()
    model.load_weights(host.items())
    assert torch.equal(model.bits(), expected.bits())
