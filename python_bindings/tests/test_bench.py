"""Files, computations and records of the benchmark, without a start of ranks."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from image_files import write_idx

torch = pytest.importorskip("torch")

from tersor import _text  # noqa: E402  torch comes first
from tersor.bench import data, hooks, sharded_hooks  # noqa: E402  torch comes first
from tersor.bench.__main__ import main  # noqa: E402
from tersor.bench.errors import BenchmarkError  # noqa: E402
from tersor.bench.measures import parameter_count, ring_bytes  # noqa: E402
from tersor.bench.models import (  # noqa: E402
    GPT_SIZES,
    Gpt,
    GptShape,
    convolutional_net,
    normalised_net,
)
from tersor.bench.records import RecordFile, read_records  # noqa: E402
from tersor.bench.tasks import (  # noqa: E402
    TASKS,
    Recipe,
    Share,
    TaskOptions,
    TextTask,
    check_memory,
)
from tersor.bench.training import Training  # noqa: E402
from tersor.bench.world import World, single_rank_group  # noqa: E402


def write_images(folder: pathlib.Path, count: int) -> np.ndarray:
    pixels = np.arange(count * 6).reshape(count, 2, 3) % 251
    write_idx(folder / "train-images-idx3-ubyte", pixels)
    write_idx(folder / "train-labels-idx1-ubyte", np.arange(count) % 10)
    return pixels


def test_written_images_load_unchanged(tmp_path: pathlib.Path) -> None:
    pixels = write_images(tmp_path, 12)
    images = data.load_images(tmp_path, "train")
    assert np.array_equal(images.pixels, pixels)
    assert images.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_gzip_images_are_supported(tmp_path: pathlib.Path) -> None:
    pixels = write_images(tmp_path, 3)
    plain = tmp_path / "train-images-idx3-ubyte"
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert np.array_equal(data.load_images(tmp_path, "train").pixels, pixels)


def test_damaged_or_missing_images_are_rejected(tmp_path: pathlib.Path) -> None:
    write_images(tmp_path, 3)
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1])
    with pytest.raises(BenchmarkError, match="does not have"):
        data.load_images(tmp_path, "train")
    images.write_bytes(b"not IDX at all")
    with pytest.raises(BenchmarkError, match="not an IDX file"):
        data.load_images(tmp_path, "train")
    images.unlink()
    with pytest.raises(BenchmarkError, match="dataset-fashion-mnist"):
        data.load_images(tmp_path, "train")


def test_label_count_must_match_images(tmp_path: pathlib.Path) -> None:
    write_images(tmp_path, 3)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(2))
    with pytest.raises(BenchmarkError, match="3 train images have 2 labels"):
        data.load_images(tmp_path, "train")


def test_text_loads_as_alphabet_indices(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "text"
    path.write_text("abcab" * 20, encoding="utf-8")
    text = data.load_text(path)
    assert text.alphabet == b"abc"
    assert text.train[:5].tolist() == [0, 1, 2, 0, 1]
    assert (len(text.train), len(text.validation)) == (95, 5)


def test_text_of_one_character_is_rejected(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "text"
    path.write_text("aaaa", encoding="utf-8")
    with pytest.raises(BenchmarkError, match="different bytes"):
        data.load_text(path)


def test_error_for_missing_text_suggests_corpus_command(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BenchmarkError, match=r"corpus FILE"):
        data.load_text(tmp_path / "missing")
    damaged = tmp_path / "text.gz"
    damaged.write_bytes(gzip.compress(b"abc" * 100)[:-9])
    with pytest.raises(BenchmarkError, match=r"corpus FILE"):
        data.load_text(damaged)


def test_corpus_from_packages(tmp_path: pathlib.Path) -> None:
    plain, packed, records = (tmp_path / name for name in ("text", "text.gz", "records.json"))
    arguments = ["corpus", "--packages", "pytest", "numpy", "--mib", "1"]
    assert main([*arguments, str(plain), "--json", str(records)]) == 0
    assert main([*arguments, str(packed)]) == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert plain.stat().st_size == 2**20
    first, second = data.load_text(plain), data.load_text(packed)
    assert np.array_equal(first.train, second.train)
    assert first.alphabet == second.alphabet
    parts = json.loads(records.read_text())
    assert [one["package"] for one in parts] == ["numpy", "pytest"]
    assert sum(one["bytes"] for one in parts) == 2**20
    assert all(one["files"] and one["sha256"] == first.sha256 for one in parts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--packages", "no-such-package"], "no-such-package is not installed"),
        (["--packages", "pytest", "--mib", "100"], "give fewer --mib or more --packages"),
    ],
)
def test_invalid_corpus_options_are_rejected(
    options: list[str], message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["corpus", str(tmp_path / "text"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "text").exists()


@pytest.fixture
def text_task(tmp_path: pathlib.Path) -> TextTask:
    path = tmp_path / "text"
    path.write_text("In the beginning God created the heaven and the earth. " * 300, "utf-8")
    options = TaskOptions(path, batch=3, epochs=2, steps=5, device=torch.device("cpu"), ranks=2)
    return TextTask(options)


def test_targets_are_the_next_characters(text_task: TextTask) -> None:
    inputs, targets = text_task.batch(seed=1, step=0, share=Share(0, 2))
    assert inputs.shape == targets.shape == (3, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_batches_depend_on_seed_and_rank(text_task: TextTask) -> None:
    first, again = (text_task.batch(1, 4, Share(0, 2))[0] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, text_task.batch(1, 4, Share(1, 2))[0])
    assert not torch.equal(first, text_task.batch(2, 4, Share(0, 2))[0])


def test_ranks_split_test_data_evenly(text_task: TextTask) -> None:
    counts = [sum(len(batch[0]) for batch in text_task.test_batches(Share(r, 3))) for r in range(3)]
    assert sum(counts) == 512
    assert max(counts) - min(counts) <= 1


def test_learning_rate_rises_and_falls() -> None:
    recipe = Recipe(batch=1, epochs=2, steps=50, learning_rate=1.0)
    rates = [recipe.learning_rate_at(step) for step in range(100)]
    highest = rates.index(max(rates))
    assert 8 <= highest <= 11
    assert rates == sorted(rates[: highest + 1]) + sorted(rates[highest + 1 :], reverse=True)
    assert 0 < rates[-1] < 0.001


def test_rate_option_scales_learning_rate(text_task: TextTask, tmp_path: pathlib.Path) -> None:
    options = TaskOptions(tmp_path / "text", 3, 2, 5, torch.device("cpu"), ranks=2, rate=2.0)
    assert TextTask(options).recipe == dataclasses.replace(
        text_task.recipe, learning_rate=2 * text_task.recipe.learning_rate
    )


@pytest.mark.parametrize("size", GPT_SIZES)
def test_gpt_parameter_count_matches_its_name(size: str) -> None:
    with torch.device("meta"):
        count = parameter_count(Gpt(73, GPT_SIZES[size]))
    assert count / 1e6 == pytest.approx(float(size.removesuffix("m")), rel=0.1)


def test_wider_gpts_have_lower_learning_rates(tmp_path: pathlib.Path, text_task: TextTask) -> None:
    options = TaskOptions(tmp_path / "text", 3, 2, 5, torch.device("cpu"), ranks=2)
    sizes = ("0.2m", "0.8m", "6m", "12m")
    tasks = [TextTask(dataclasses.replace(options, size=size)) for size in sizes]
    rates = [task.recipe.learning_rate for task in tasks]
    assert rates == sorted(rates, reverse=True)
    assert tasks[1].recipe == text_task.recipe
    assert rates[0] / rates[2] == pytest.approx(4 ** (2 / 3))


def test_text_too_short_for_the_training_is_rejected(
    tmp_path: pathlib.Path, text_task: TextTask
) -> None:
    assert text_task.fields["size"] == "0.8m"
    assert len(text_task.fields["data_sha256"]) == 16
    options = TaskOptions(tmp_path / "text", 3, 2, 500, torch.device("cpu"), ranks=2)
    with pytest.raises(BenchmarkError, match=r"384,000 .* 15,675: .* 48,000 or more.*corpus"):
        TextTask(options)


class Unequal(World):
    """Ranks whose weights differ."""

    def same_on_all_ranks(self, values: Any) -> bool:
        return False


def test_training_with_unequal_ranks_raises(text_task: TextTask, tmp_path: pathlib.Path) -> None:
    shape = GptShape(layers=1, heads=1, width=16, context=8)
    options = TaskOptions(tmp_path / "text", 3, 2, 5, torch.device("cpu"), ranks=2, shape=shape)
    with single_rank_group():
        task, world = TextTask(options), Unequal(0, 1, 1, torch.device("cpu"))
        training = Training(task, "none", 1, world)
        epochs = training.epochs()
        assert next(epochs)["epoch"] == 1
        with pytest.raises(BenchmarkError, match="different values of embedding"):
            next(epochs)


def test_insufficient_gpu_memory_is_rejected() -> None:
    needed = GPT_SIZES["86m"].step_bytes(batch=32)
    assert 6 * 2**30 < needed < 9 * 2**30
    check_memory(needed, ranks=2, available=80 * 2**30)
    with pytest.raises(BenchmarkError, match=r"about 7.8 GiB on each rank, and 2 .* share 8.0 GiB"):
        check_memory(needed, ranks=2, available=8 * 2**30)


@pytest.mark.parametrize("factor", ["0", "-1", "nan", "inf", "x"])
def test_invalid_rate_is_rejected(factor: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--rate", factor])
    assert "--rate" in capsys.readouterr().err


def test_gpt_predictions_are_causal() -> None:
    model = Gpt(7, GptShape(layers=2, heads=2, width=16, context=8))
    inputs = torch.zeros(1, 8, dtype=torch.long)
    changed = inputs.clone()
    changed[0, 5] = 3
    same = torch.isclose(model(inputs), model(changed)).all(dim=2)[0]
    assert same.tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("net", [convolutional_net, normalised_net])
def test_convolutional_net_docstrings_state_parameter_count(net: Callable[..., Any]) -> None:
    count = parameter_count(net(classes=10))
    assert f"{count:,} parameters" in (net.__doc__ or "")


def test_normalization_is_per_image() -> None:
    torch.manual_seed(0)
    net, images = normalised_net(classes=10), torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(net(images)[1:2], net(images[1:2]))


@pytest.mark.parametrize("name", ["cnn", "convnet"])
def test_networks_learn_from_images(name: str, tmp_path: pathlib.Path) -> None:
    labels = np.arange(64) % 4
    for part in ("train", "t10k"):  # a bright quarter, another for each label
        pixels = np.kron(np.eye(4)[labels].reshape(-1, 2, 2), np.full((14, 14), 200))
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", pixels)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", labels)
    torch.manual_seed(0)
    task = TASKS[name](TaskOptions(tmp_path, 16, 5, None, torch.device("cpu"), ranks=1))
    model = task.model()
    optimizer = task.optimizer(model)
    losses = []
    for step in range(task.recipe.epochs * task.recipe.steps):
        optimizer.param_groups[0]["lr"] = task.recipe.learning_rate_at(step)
        images, classes = task.batch(1, step, Share(0, 1))
        loss = torch.nn.functional.cross_entropy(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(("ranks", "expected"), [(1, 0.0), (2, 100.0), (4, 150.0)])
def test_ring_bytes(ranks: int, expected: float) -> None:
    assert ring_bytes(100, ranks) == expected


@pytest.mark.parametrize(
    "name",
    [
        "none",
        "int8",
        "torch:bf16",
        "torch:powersgd",
        "torch:powersgd=4",
        "torch:powersgd,start=2",
        "torch:powersgd=4,start=200",
        "adamw:int8+ef",
        "adamw=50:int8+ef",
        "diloco=20:int4+ef",
        "diloco=20,rate=1,momentum=.5,residual=0.95:blocktopk:density=0.03+ef",
        "diloco=20,muon=0.9:int4+ef",
        "diloco=20,fragments=4,delay=4:int4+ef",
        "torchft=20",
        "torchft=20,fragments=4,delay=4:int4+ef",
        "diloco=20,fragments=4,delay=0,mix=0.25,rate=1:int4+ef",
        "muon",
        "muon,momentum=0.9",
        "muon:hadamard:bits=1+ef",
        "muon=50,momentum=.8:hadamard:bits=1+ef",
    ],
)
def test_valid_hooks(name: str) -> None:
    hooks.check(name)


@pytest.mark.parametrize(
    "name",
    [
        "torch:int8",
        "torch:",
        "torch:powersgd=0",
        "torch:powersgd=x",
        "torch:powersgd=4,start=1",
        "adamw",
        "adamw:",
        "adamw=:int8+ef",
        "diloco:int8+ef",
        "diloco=0:int8+ef",
        "diloco=20",
        "torchft=0",
        "torchft=20,mix=0.5",
        "diloco=20,speed=1:int8+ef",
        "diloco=20,rate=:int8+ef",
        "diloco=20,fragments=1.5:int8+ef",
        "diloco=20,delay=-1:int8+ef",
        "muon:",
        "muon=50",
        "muon,momentum=:int8+ef",
    ],
)
def test_invalid_hooks(name: str) -> None:
    with pytest.raises(BenchmarkError, match="torch:powersgd"):
        hooks.check(name)


def test_overlapping_fragments_are_rejected() -> None:
    with pytest.raises(BenchmarkError, match=r"delay=2.*at most 1"):
        hooks.check("diloco=5,fragments=4,delay=2:int8")


@pytest.mark.parametrize(
    "name",
    [
        "adamw:int8+ef",
        "diloco=2:int8+ef",
        "muon",
        "muon,momentum=.9:int8+ef",
        "server=BSP:int8",
        "gossip=ring:int8",
    ],
)
def test_backward_rejects_optimizer_hooks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backward", "--hooks", name]) == 2
    assert "use it with train only" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["server:int8", "server=SSP:int8", "server=BSP", "gossip=star:int8", "gossip=ring,step=:int8"],
)
def test_invalid_loose_hooks(name: str) -> None:
    assert hooks.in_optimizer(name)
    with pytest.raises(BenchmarkError, match=r"BSP\|SSPn\|ASP"):
        hooks.check(name)


@pytest.mark.parametrize(
    "name",
    ["server=BSP:int8+ef", "server=SSP12:int8/bf16", "gossip=torus,step=.5:topk:density=0.1"],
)
def test_valid_loose_hooks(name: str) -> None:
    assert hooks.in_optimizer(name)
    hooks.check(name)


def test_ddp_rejects_weights_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backward", "--weights", "int8"]) == 2
    assert "--parallel fsdp only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--speeds", "1", "2", "3"], "--speeds has 3 numbers for 2 ranks"),
        (["--speeds", "1", "2"], "--speeds needs --row-seconds"),
    ],
)
def test_wrong_speeds(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backward", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("codec", ["nonsense", "int8+ef", "auto"])
def test_invalid_weights_codec(codec: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["backward", "--parallel", "fsdp", "--weights", codec])
    message = capsys.readouterr().err
    assert "--weights" in message
    assert codec in message


@pytest.mark.parametrize("name", ["none", "int8", "torch:bf16", "torch:fp16", "tersor:none"])
def test_valid_fsdp_hooks(name: str) -> None:
    sharded_hooks.check(name)


@pytest.mark.parametrize("name", ["torch:powersgd", "torch:int8", "torch:"])
def test_invalid_fsdp_hooks(name: str) -> None:
    with pytest.raises(BenchmarkError, match=f'no "{name}" with fsdp.*MixedPrecisionPolicy'):
        sharded_hooks.check(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hooks", "none", "torch:powersgd=2"], 'no "torch:powersgd=2" with fsdp'),
        (["--bucket", "4"], "--bucket is for DDP only"),
        (["--hooks", "weighted:int8"], "weighted:CODEC is for DDP only"),
    ],
)
def test_fsdp_rejects_ddp_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backward", "--parallel", "fsdp", *options]) == 2
    assert message in capsys.readouterr().err


def test_records_contain_their_origin(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/a/tersor/bench/__main__.py", "train", "--data", "a b"])
    path = tmp_path / "out.json"
    records = RecordFile(path)
    records.add({"benchmark": "train"})
    records.add({"benchmark": "backward"})
    first, second = json.loads(path.read_text())
    assert list(first) == ["benchmark", "command", "machine", "date", "commit"]
    assert first["command"] == "python -m tersor.bench train --data 'a b'"
    assert second["benchmark"] == "backward"


@pytest.mark.parametrize("content", ["[1]", "{}", "[", '[{"a": 1}'])
def test_malformed_record_file_raises(content: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "out.json"
    assert read_records(path) == []
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BenchmarkError, match=r"out\.json"):
        read_records(path)


def test_existing_records_precede_new_records(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "out.json"
    RecordFile(path, [{"epoch": 1}]).add({"epoch": 2})
    assert [one["epoch"] for one in read_records(path)] == [1, 2]
    records = RecordFile(path, read_records(path))
    records.remove(lambda one: one["epoch"] == 1)
    assert len(read_records(path)) == 2
    records.add({"epoch": 3})
    assert [one["epoch"] for one in read_records(path)] == [2, 3]


def test_aborted_write_keeps_previous_records(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    records = RecordFile(path)
    records.add({"epoch": 1})
    monkeypatch.setattr(pathlib.Path, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        records.add({"epoch": 2})
    assert [one["epoch"] for one in read_records(path)] == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "--resume needs --json FILE"),
        (["--model", "cnn", "--size", "6m"], "--size is for GPTs"),
    ],
)
def test_inconsistent_training_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *options]) == 2
    assert message in capsys.readouterr().err


def test_unwritable_record_file_raises(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BenchmarkError, match="cannot write"):
        RecordFile(tmp_path / "missing" / "out.json")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "12.3 ms"), (2.5, "2.50 s"), (None, "—"), (3e-7, "0.30 µs")]
)
def test_seconds_formatting(value: float | None, text: str) -> None:
    assert _text.seconds(value) == text


def test_codec_command(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "codec.json"
    arguments = [
        "codec",
        "--codec",
        "int8",
        "--mib",
        "1",
        "--repetitions",
        "3",
        "--json",
        str(path),
    ]
    assert main(arguments) == 0
    encode, decode = json.loads(path.read_text())
    assert (encode["operation"], decode["operation"]) == ("encode, Python", "decode, Python")
    assert encode["count"] == 2**18
    assert 2**18 < encode["payload_bytes"] < 1.05 * 2**18
    assert 0 < encode["relative_error"] < 0.02


@pytest.mark.parametrize("spec", ["nonsense", "int8+ef"])
def test_codec_command_rejects_invalid_codecs(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codec", "--codec", spec, "--mib", "1"]) == 2
    assert spec in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_missing_gpu_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")  # a rank already: nothing is started
    assert main(["backward", "--device", "cuda"]) == 2
    assert "finds no GPU" in capsys.readouterr().err
