"""``python -m tersor.torch.run`` with unchanged scripts, on two ranks."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import pathlib
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from pages import SOURCES, output_on_ranks

import ranks
import tersor

torch = pytest.importorskip("torch")

BEGIN = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
"""
TRAIN = """
def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    random, losses = torch.Generator().manual_seed(rank), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64, generator=random)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""
DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)\n"
FSDP = """
from torch.distributed.fsdp import fully_shard
for layer in (net[0], net[2], net):
    fully_shard(layer)
model = net
"""
RESULT = "result = train(model)\n"
BYTES = 4 * (2 * 64 * 128 + 64 + 128)  # of the model's gradients


@contextlib.contextmanager
def nothing_left_behind() -> Iterator[list[Any]]:
    """Removes the patches at the end. Yields the functions that were registered for the exit."""
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from tersor.torch import fsdp
    from tersor.torch._src.run import patches as constructors

    methods = [
        (DistributedDataParallel, "__init__"),
        (DistributedDataParallel, "register_comm_hook"),
        (FSDPModule, "unshard"),
        (torch.amp.GradScaler, "__init__"),
    ]
    before = [getattr(of, name) for of, name in methods]
    functions = [fully_shard, fsdp.compress, dist.all_reduce]
    at_exit: list[Any] = []
    path, arguments = sys.path[:], sys.argv
    try:
        with mock.patch("atexit.register", lambda *call: at_exit.append(call)):
            yield at_exit
    finally:
        for (of, name), method in zip(methods, before, strict=True):
            setattr(of, name, method)
        now = [torch.distributed.fsdp.fully_shard, fsdp.compress, dist.all_reduce]
        constructors.replace(dict(zip(now, functions, strict=True)))
        sys.path[:], sys.argv = path, arguments


def ran(rank: int, _: int, script: str, arguments: list[str]) -> tuple[Any, str]:
    """Returns ``result`` of a script, and the output of rank 0. Without arguments, the script runs
    without Tersor."""
    import runpy

    from tersor.torch import run

    said = io.StringIO()
    found: dict[str, Any] = {}
    take, run_path = found.update, runpy.run_path
    if pathlib.Path(script).with_name("early.py").exists():
        with mock.patch("sys.path", [os.path.dirname(script), *sys.path]):
            importlib.import_module("early")
    with (
        nothing_left_behind() as at_exit,
        contextlib.redirect_stderr(said),
        mock.patch("runpy.run_path", lambda *a, **k: take(run_path(*a, **k))),
    ):
        if arguments:
            assert run.main([*arguments, script, "--own", "7"]) == 0
            for function, *rest in at_exit:
                if function is run._end:
                    function(*rest)
        else:
            runpy.run_path(script, run_name="__main__")
    return found["result"], said.getvalue()


def both(folder: pathlib.Path, text: str, *arguments: str) -> tuple[list[Any], str]:
    """Results of both ranks, and the output of rank 0. Rank 1 prints no message of Tersor."""
    script = folder / "train.py"
    script.write_text(text)
    (first, said), (second, silent) = ranks.run(ran, 2, str(script), list(arguments))
    assert not re.search(r"^tersor|Warning: ", silent, re.MULTILINE), silent
    return [first, second], said


@pytest.mark.parametrize("wrap", [DDP, FSDP], ids=["DDP", "FSDP2"])
def test_uncompressed_and_dry_runs_keep_the_script_losses(
    wrap: str, tmp_path: pathlib.Path
) -> None:
    script = BEGIN + TRAIN + wrap + RESULT
    plain, _ = both(tmp_path, script)
    none, said = both(tmp_path, script, "--codec", "none")
    assert none == plain
    assert "1 model was seen" in said
    dry, said = both(tmp_path, script, "--codec", "int8", "--dry")
    assert dry == plain
    assert "would send about" in said
    assert "2.weight" in said
    lossy, said = both(tmp_path, script, "--codec", "int8")
    assert lossy != plain
    (told,) = re.findall(r"sent (.*) KiB a step instead of (.*) KiB \((.*). less\), (.*) KiB", said)
    sent, instead, ratio, total = map(float, told)
    # An all-reduce of two ranks sends all of it, a reduce-scatter half.
    assert instead == pytest.approx(BYTES / 1024 / (2 if wrap == FSDP else 1), rel=1e-2)
    assert ratio == pytest.approx(instead / sent, rel=1e-2)
    assert total == pytest.approx(3 * sent, rel=1e-2)
    assert 3.2 < ratio < 4
    assert "in 3 steps" in said


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        (
            "net[0].double()\nmodel = torch.nn.parallel.DistributedDataParallel(net)\n",
            ["--codec", "int8", "--unsupported", "error"],
            r"cannot be compressed: 0\.weight \(float64\)",
        ),
        (
            DDP + "both = [torch.amp.GradScaler('cpu') for _ in range(2)]\ntrain(model)\n",
            ["--codec", "int4+ef"],
            "the script has 2 GradScalers",
        ),
    ],
    ids=["unsupported", "scalers"],
)
def test_unsupported_script_raises(
    script: str, options: list[str], message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(AssertionError, match=r"rank \d raised") as caught:
        both(tmp_path, BEGIN + TRAIN + script, *options)
    assert re.search(message, str(caught.value))


NEW_SCALERS = """
import gc
gc.disable()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    scaler = torch.amp.GradScaler("cpu")
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(1, 64)).square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
gc.enable()
result = [one.sum().item() for one in net.parameters()]
"""


def test_script_may_replace_its_scaler(tmp_path: pathlib.Path) -> None:
    (first, second), _ = both(tmp_path, BEGIN + DDP + NEW_SCALERS, "--codec", "int4+ef")
    assert first == second


SCALED = """
HERE = lambda _: None
for step in range(3):
    scaler.scale(model(torch.full((1, 64), 1.0 + step)).square().sum()).backward()
    scaler.update(2 * scaler.get_scale())
    model.zero_grad()
"""
MODELS = {
    "subclass": """
class Mine(DDP):
    def __init__(self, module):
        super().__init__(module, gradient_as_bucket_view=True)
model = Mine(net)
""",
    "static": "model = DDP(net, static_graph=True)\n",
    "unused": "net.append(nn.Identity()).unused = nn.Linear(64, 64)\n"
    "model = DDP(net, find_unused_parameters=True)\n",
    "frozen": "net[0].requires_grad_(False)\nmodel = DDP(net)\n",
    "compiled": 'inner = DDP(torch.compile(net, backend="eager"))\n'
    'model = torch.compile(inner, backend="eager")\n',
    "GAN": "other = DDP(nn.Linear(64, 64))\nHERE(other)\nmodel = DDP(net)\n",
    "no_sync": """
model = DDP(net)
HERE(model)
with model.no_sync():
    model(torch.ones(1, 64)).sum().backward()
HERE = lambda model: None
""",
    "FSDP2": FSDP,
    "unsharded": FSDP + "HERE(model)\nHERE = lambda _: None\nmodel.unshard()\n",
    "compiled FSDP2": FSDP + 'model = torch.compile(net, backend="eager")\n',
    "layers": """
from torch.distributed.fsdp import fully_shard
for layer in (net[0], net[2]):
    fully_shard(layer)
    HERE(layer)
model, HERE = net, lambda _: None
""",
    "scaler": """
model = DDP(net)
scaler = torch.amp.GradScaler("cpu")
HERE(model, scaler)
"""
    + SCALED,
    "FSDP2 scaler": FSDP + 'scaler = torch.amp.GradScaler("cpu")\nHERE(model, scaler)\n' + SCALED,
}
IMPORTS = "from torch.nn.parallel import DistributedDataParallel as DDP\n"


@pytest.mark.parametrize("name", MODELS)
def test_script_trains_like_an_explicit_compress_call(name: str, tmp_path: pathlib.Path) -> None:
    text = BEGIN + TRAIN + IMPORTS + "HERE = lambda *_: None\n" + MODELS[name]
    found, said = both(tmp_path, text + RESULT, "--codec", "int4+ef")
    line = """
import tersor.torch
def HERE(model, scaler=None):
    tersor.torch.compress(model, codec="int4+ef", scaler=scaler)
"""
    text = text.replace("HERE = lambda *_: None\n", line, 1)
    wanted, _ = both(tmp_path, text + "HERE(model)\n" + RESULT)
    assert found == wanted
    count = 2 if name in ("GAN", "layers") else 1
    assert f"{count} model{'s were' if count > 1 else ' was'} seen" in said
    assert "left alone" not in said


NAMES = {
    "class": DDP,
    "module": "import torch\nmodel = torch.nn.parallel.DistributedDataParallel(net)\n",
    "function": FSDP,
    "other module": "import torch.distributed.fsdp as fsdp\nmodel = fsdp.fully_shard(net)\n",
    "by keyword": "model = torch.distributed.fsdp.fully_shard(module=net)\n",
    "imported before": "import early\nmodel = early.shard(net)\n",
    "in a list": "model = torch.distributed.fsdp.fully_shard([net])[0]\n",
}


def test_models_are_found_for_all_import_styles(tmp_path: pathlib.Path) -> None:
    (tmp_path / "early.py").write_text("from torch.distributed.fsdp import fully_shard as shard\n")
    fresh = "net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))\n"
    text = "".join(fresh + one + "train(model, 1)\n" for one in NAMES.values())
    script = BEGIN + TRAIN + text + "result = sys.argv, sys.path[0], __name__\n"
    (found, _), said = both(tmp_path, script, "--codec", "int8")
    assert found == ([str(tmp_path / "train.py"), "--own", "7"], str(tmp_path), "__main__")
    assert f"{len(NAMES)} models were seen" in said
    assert said.count("in 1 step\n") == len(NAMES)


DROPPED = """
import gc, weakref
train(model)
gone = weakref.ref(model)
del model, net
gc.collect()
result = gone() is None
"""


@pytest.mark.parametrize("wrap", [DDP, FSDP], ids=["DDP", "FSDP2"])
def test_dropped_model_is_released_and_reported(wrap: str, tmp_path: pathlib.Path) -> None:
    if wrap == FSDP:
        wrap += "del layer\n"
    found, said = both(tmp_path, BEGIN + TRAIN + wrap + DROPPED, "--codec", "int4+ef")
    assert found == [True, True]
    assert "in 3 steps" in said


HOOK = """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
model.register_comm_hook(None, fp16_compress_hook)
"""
CALL = 'import tersor.torch\nhandle = tersor.torch.compress(model, codec="int4")\n'
OWN = {
    "hook": (DDP + HOOK, "the script registers a communication hook of its own"),
    "call": (DDP + CALL, "the script calls tersor.torch.compress itself"),
    "FSDP2 call": (FSDP + CALL, "the script calls tersor.torch.compress itself"),
    "late FSDP2 call": (
        FSDP + "model(torch.ones(1, 64))\n" + CALL,
        "the script calls tersor.torch.compress itself",
    ),
}


@pytest.mark.parametrize("dry", [[], ["--dry"]], ids=["", "dry"])
@pytest.mark.parametrize("name", OWN)
def test_script_with_its_own_hook_is_left_alone(
    name: str, dry: list[str], tmp_path: pathlib.Path
) -> None:
    wrap, reason = OWN[name]
    script = BEGIN + TRAIN + wrap + RESULT
    plain, _ = both(tmp_path, script)
    found, said = both(tmp_path, script, "--codec", "int8+ef", *dry)
    assert found == plain
    assert "1 model was seen" in said
    assert said.count(f"left alone: {reason}") == 2  # at once, and in the end


@pytest.mark.parametrize("options", [["--codec", "int8"], ["--dry"]], ids=["", "dry"])
def test_unsupported_shards_are_sent_uncompressed(
    options: list[str], tmp_path: pathlib.Path
) -> None:
    script = BEGIN + TRAIN.replace("64, gen", "64, dtype=torch.float64, gen") + "net.double()\n"
    plain, _ = both(tmp_path, script + FSDP + RESULT)
    found, said = both(tmp_path, script + FSDP + RESULT, *options)
    assert found == plain
    assert said.count(" (float64)") == (2 if "--codec" in options else 0)  # of each layer once
    assert str(pathlib.Path(torch.__file__).parent) not in said


def test_unsupported_gradients_are_reported(tmp_path: pathlib.Path) -> None:
    script = BEGIN + TRAIN.replace("64, gen", "64, dtype=torch.float64, gen") + "net.double()\n"
    plain, _ = both(tmp_path, script + DDP + RESULT)
    found, said = both(tmp_path, script + DDP + RESULT, "--codec", "int8")
    assert found == plain
    assert "left alone: there is no gradient to compress" in said


def test_a_group_without_a_store_is_left_alone(tmp_path: pathlib.Path) -> None:
    """As the group of torchft's DistributedDataParallel."""
    hide = "from unittest import mock\nhidden = mock.patch.object(dist.ProcessGroup, "
    hide += "'get_group_store', lambda _: None)\n"
    plain, _ = both(tmp_path, BEGIN + TRAIN + DDP + RESULT)
    script = BEGIN + TRAIN + hide + DDP.replace("model", "with hidden: model") + RESULT
    found, said = both(tmp_path, script, "--codec", "int8")
    assert found == plain
    assert "left alone: the process group has no store" in said


def test_other_all_reduces_are_counted_but_unchanged(tmp_path: pathlib.Path) -> None:
    text = BEGIN + "large, small = torch.full((1 << 18,), 0.1 + rank), torch.ones(9)\n"
    text += "for _ in range(2):\n    dist.all_reduce(small)\n    dist.all_reduce(large)\n"
    script = text + "dist.all_reduce(large.int())\nresult = large.tolist()[:9]\n"
    plain, _ = both(tmp_path, script)
    found, said = both(tmp_path, script)
    assert found == plain
    found, said = both(tmp_path, script, "--codec", "int8")
    assert found == plain
    assert "0 models were seen" in said
    line = 1 + text.splitlines().index("    dist.all_reduce(large)")
    assert f"train.py:{line}: 2 calls, 2.00 MiB" in said
    assert said.count("dist.all_reduce at") == 1


def test_rules_are_read_from_a_file(tmp_path: pathlib.Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("# biases first\n*.bias none\n\n2.* bf16\n2.* int8 2\n")
    script = BEGIN + TRAIN + DDP + RESULT
    _, said = both(tmp_path, script, "--rules", str(rules), "--codec", "int4", "--dry")
    ways = {line.split()[0]: line for line in said.splitlines() if line.startswith("    ")}
    assert "none (rule" in ways["0.bias"]
    assert 'int4 (rule "*"' in ways["0.weight"]
    assert "from step 2 on int8" in ways["2.weight"]
    with pytest.raises(AssertionError, match=r'no rule matches parameter "0.weight"'):
        both(tmp_path, script, "--rules", str(rules))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.py"], "there is no file 'none.py': give the script's path"),
        (["-m", "none.py"], "there is no module 'none.py'"),
        (["--codec", "int9", "train.py"], "int9"),
        (["--rules", "none", "train.py"], "No such file or directory: 'none'"),
        (["--report", "none/at/all.png", "train.py"], "none/at/all.png: its folder"),
    ],
)
def test_invalid_arguments_are_reported_before_the_script_starts(
    arguments: list[str], message: str, tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any
) -> None:
    from tersor.torch import run

    if "--report" in arguments:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise AssertionError('started')")
    assert run.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("* int8\n*.bias\n", ":2: '*.bias': a rule is `pattern codec [from_step]`"),
        ("* int8 soon\n", ":1: '* int8 soon': a rule is"),
        ("*\tint8 1 2\n", "a rule is"),
        ("\n* int9\n", ":2: '* int9': "),
        ("# nothing\n", "has no rule"),
        ("* int8 5\n", 'rule "*" begins with step 5'),
        ("* int8 " + "9" * 5000 + "\n", "a rule is"),
        ("\udcff", "is not UTF-8 text"),
    ],
)
def test_invalid_rule_is_reported(
    text: str, message: str, tmp_path: pathlib.Path, capsys: Any
) -> None:
    from tersor.torch import run

    rules = tmp_path / "rules"
    rules.write_bytes(text.encode(errors="surrogateescape"))
    assert run.main(["--rules", str(rules), __file__]) == 2
    assert message in capsys.readouterr().err


def with_options_of_its_own(rank: int, count: int, script: str, options: list[list[str]]) -> str:
    with pytest.raises(tersor.InvalidArgumentError) as caught:
        ran(rank, count, script, options[rank])
    return str(caught.value)


@pytest.mark.parametrize("wrap", [DDP, FSDP], ids=["DDP", "FSDP2"])
def test_option_mismatch_is_reported_on_all_ranks(wrap: str, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + TRAIN + wrap + RESULT)
    options = [["--codec", "int8"], ["--codec", "auto"]]
    for message in ranks.run(with_options_of_its_own, 2, str(script), options):
        assert "rank 1 was started with" in message
        assert "'auto'" in message
        assert "'int8'" in message
        assert "--codec" in message


def until_killed(rank: int, count: int, script: str) -> None:
    ran(rank, count, script, ["--codec", "int8"])


def test_error_names_the_killed_rank(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    kill = "train(model, 2)\nif rank == 1:\n    os.kill(os.getpid(), 9)\n"
    script.write_text(BEGIN + TRAIN + DDP + kill + RESULT)
    first, second = ranks.outcomes(until_killed, 2, str(script))
    assert second.exit_code == -signal.SIGKILL
    assert isinstance(first.error, tersor.TransportError)
    assert "rank 1" in str(first.error)


def test_documented_command_runs(tmp_path: pathlib.Path) -> None:
    page = (SOURCES / "docs/how-to/without-code-changes.md").read_text()
    (command,) = re.findall(r"^torchrun .* -m tersor.torch.run .*$", page, re.MULTILINE)
    begin = 'import torch.distributed as dist\ndist.init_process_group("gloo")\n'
    script = begin + BEGIN + TRAIN + DDP + "train(model)\ndist.destroy_process_group()\n"
    (tmp_path / "train.py").write_text(script)
    launch, module, words = re.split(r"(?<=2) (-m tersor\.torch\.run) ", command)
    assert launch == "torchrun --nproc-per-node 2"
    report = ["--report", "report.png"] if importlib.util.find_spec("matplotlib") else []
    _, told = output_on_ranks(*module.split(), *report, *words.split(), folder=tmp_path)
    assert told.count("tersor: 1 model was seen") == 1
    assert (tmp_path / "report.png").exists() == bool(report)
