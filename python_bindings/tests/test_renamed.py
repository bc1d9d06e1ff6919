"""Modules and keywords with old names work, and warn once with the new name."""

import importlib
import pathlib
import pickle
import subprocess
import sys
import warnings
from typing import Any

import pytest
from pages import output_on_ranks

import tersor
from tersor import _renamed

FRAMEWORKS = {"flower": "flwr", "nvflare": "nvflare", "torch": "torch"}
PROGRAM = """import warnings
warnings.simplefilter("always")
import tersor.torch
tersor.torch.group.close
tersor.torch.group.close
from tersor.torch import group
from tersor.torch.compressed_adamw import CompressedAdamW
import tersor.lanes
assert CompressedAdamW is tersor.torch.CompressedAdamW
"""


@pytest.mark.parametrize("old", sorted(_renamed._RENAMED))
def test_old_module_name_imports_the_new_module(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(FRAMEWORKS.get(old.split(".")[1], "numpy"))
    new, public = _renamed._RENAMED[old]
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated .* use {public}"):
        found = importlib.import_module(old)
    assert found is importlib.import_module(new)


def test_each_old_name_warns_once_at_its_use(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "old.py").write_text(PROGRAM)
    _, errors = output_on_ranks(tmp_path / "old.py", count=1)
    told = [line for line in errors.splitlines() if "is deprecated and ends" in line]
    lines = [line.split(":")[1] for line in told if line.startswith(f"{tmp_path}/old.py:")]
    assert lines == ["4", "7", "8"], errors
    assert len(told) == 3


def test_old_pickled_class_path_loads() -> None:
    pytest.importorskip("torch")
    copies = importlib.import_module("tersor.torch._src.ddp.copies")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = pickle.loads(b"ctersor.torch.copied\nCopiedHookState\n.")
    assert found is copies.CopiedHookState


def test_unknown_names_raise() -> None:
    pytest.importorskip("torch")
    torch = importlib.import_module("tersor.torch")
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        _ = torch.nonsense
    for package, names in _renamed._EQUIVALENTS.items():
        module = importlib.import_module(package)
        for name, here in names.items():
            with pytest.raises(AttributeError, match=f"'{name}': use {package}"):
                getattr(module, name)
            assert here in module.__all__
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tersor.nonsense")
    assert {"compress", "close", "transport", "optim"} <= set(dir(torch))
    assert {"AddressError", "Difference", "ReducerOptions", "Tuner", "TcpTransport"} <= set(
        tersor.__all__
    )
    assert tersor.AddressError.__module__ == "tersor"


def test_renamed_keyword_warns_once_and_sets_the_new_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_renamed, "_warned", set())

    @_renamed.renamed_keywords(group="process_group", least="minimum")
    def made(value: int, *, process_group: str = "all", minimum: int = 1) -> tuple[int, str, int]:
        """What it is."""
        return value, process_group, minimum

    assert (made.__name__, made.__doc__) == ("made", "What it is.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(1, process_group="new") == (1, "new", 1)
    old = {"group": "old", "least": 3}
    with pytest.warns(DeprecationWarning, match="use ") as told:
        assert made(1, **old) == (1, "old", 3)
    assert all(warning.filename == __file__ for warning in told)
    texts = sorted(str(warning.message).partition("made")[2] for warning in told)
    ends = "is deprecated and ends with the next release: use"
    assert texts == [f"(group=) {ends} process_group=", f"(least=) {ends} minimum="]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(2, **old) == (2, "old", 3)
    with pytest.raises(TypeError, match=r"got process_group= and group=, its old name"):
        made(1, process_group="new", **old)


def test_renamed_class_keyword_warning_names_the_class() -> None:
    class Made:
        @_renamed.renamed_keywords(root="src")
        def __init__(self, *, src: int) -> None:
            self.src = src

    with pytest.warns(DeprecationWarning, match=r"Made\(root=\) is deprecated .* use src="):
        assert Made(**{"root": 4}).src == 4


class Decaying:
    residual_factor = _renamed.renamed_attribute("error_decay")


def test_old_attribute_warns_once_and_sets_the_new_one() -> None:
    one: Any = Decaying()
    message = r"Decaying.residual_factor .* use .error_decay"
    with pytest.warns(DeprecationWarning, match=message) as told:
        one.residual_factor = 0.5
    assert {warning.filename for warning in told} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one.residual_factor == one.error_decay == 0.5


def test_old_method_names_warn_once() -> None:
    program = """
import tersor.local
def rank(transport):
    reducer = tersor.GradientReducer(transport, codec="none")
    reducer.hear_fault()
    reducer.hear_fault()
    transport.poison("a test says so")
    transport.poison("a test says so")
    transport.barrier()
try:
    tersor.local.run(1, rank)
except tersor.TransportError as error:
    assert "a test says so" in str(error)
else:
    raise AssertionError("the transport was not aborted")
"""
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    told = [line for line in ended.stderr.splitlines() if "is deprecated and ends" in line]
    assert len(told) == 2, ended.stderr
    assert "use GradientReducer.check_faults" in told[0]
    assert "use Transport.abort" in told[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ambiguous_old_calls_are_rejected() -> None:
    torch = pytest.importorskip("torch")
    tersor_torch = importlib.import_module("tersor.torch")
    a, b = torch.ones(3), torch.zeros(3)
    model = torch.nn.Linear(2, 2)
    calls: list[tuple[Any, str]] = [
        (lambda: tersor_torch.gather(a, b), "pass output= by keyword"),
        (lambda: tersor_torch.gather(a, torch.zeros(6), output=b), "multiple values for argument"),
        (lambda: tersor_torch.reduce(a, b, tensor=a), "multiple values for argument 'tensor'"),
        (lambda: tersor_torch.reduce(a, b, 0, root=1), "multiple values for argument 'root'"),
        (
            lambda: tersor_torch.broadcast_parameters(model, 0, "int8", group=None),
            "nothing after src",
        ),
        (
            lambda: tersor_torch.all_to_all_single(a, None, None, "none", codec="int8"),
            "multiple values for argument 'codec'",
        ),
    ]
    for call, message in calls:
        with pytest.raises(TypeError, match=message):
            call()
