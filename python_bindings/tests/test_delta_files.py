"""Versions of weights in files: a receiver gets the same bits, or an error and the old bits."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from delta_models import interrupted, same, stepped, weights
from test_delta import checksum, decode

import tersor
import tersor.local
from tersor import delta
from tersor.delta import _files, _transaction

pytest.importorskip("safetensors")
SECOND = "v000000000002"


def version(number: int) -> dict[str, Any]:
    """The weights of a version. 64 versions differ a little each."""
    base = weights()
    base["layer.bias"] += numpy.float32(number)
    base["layer.weight"].view(numpy.uint16)[: number % 64] += 1
    return base


def unhashed_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """The second version's manifest without the hash, for tests that change members."""
    manifest: dict[str, Any] = json.loads((folder / f"{SECOND}.json").read_text())
    del manifest["sha256"]
    return manifest


def published(folder: pathlib.Path, count: int, **options: Any) -> delta.Publisher:
    publisher = delta.Publisher(folder, **options)
    for number in range(1, count + 1):
        publisher.publish(number, version(number))
    return publisher


def file_of(folder: pathlib.Path, number: int, suffix: str) -> pathlib.Path:
    """The file of a version with this suffix."""
    [path] = folder.glob(f"v{number:012}*.{suffix}")
    return path


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder for versions. Nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return tmp_path / "versions"


def test_receivers_update_to_any_version(folder: pathlib.Path) -> None:
    publisher = delta.Publisher(folder, metadata={"rounding": "nearest"})
    following, ours = delta.Receiver(folder), weights(5)
    for number in range(1, 8):
        manifest = publisher.publish(number, version(number))
        assert (following.update(ours), following.version) == (number, number)
        assert same(ours, version(number))
    assert manifest["metadata"] == {"rounding": "nearest"}
    assert manifest["base_version"] == 6
    assert {one["kind"] for one in manifest["tensors"]} == {"delta", "none"}
    for begin in range(1, 8):
        ours = version(begin)
        skipping = delta.Receiver(folder, version=begin, threads=2)
        assert skipping.update(ours, 7) == 7
        assert same(ours, version(7))
        assert skipping.update(ours) == 7
    for target in range(7, 0, -1):  # back, from the full copy
        assert skipping.update(ours, target) == target
        assert same(ours, version(target))
    assert {path.suffix for path in folder.iterdir()} == {".json", ".delta", ".safetensors"}
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_files_match_the_documented_format(folder: pathlib.Path) -> None:
    published(folder, 2)
    manifest = json.loads((folder / f"{SECOND}.json").read_text())

    def hash_of(value: Any) -> str:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    keys, tensors = ("name", "dtype", "type", "shape", "slice"), manifest["tensors"]
    assert manifest.pop("sha256") == hash_of(manifest)
    assert manifest["model"] == hash_of(sorted([[one[key] for key in keys] for one in tensors]))
    assert (manifest["version"], manifest["base_version"]) == (2, 1)
    for one in tensors:
        name, data = one["name"], (folder / one["file"]).read_bytes()
        old, new = (version(number)[name].tobytes() for number in (1, 2))
        frame = data[one["offset"] : one["offset"] + one["bytes"]]
        assert decode(frame, {name: old}) == {name: new}
        assert (int(one["base_checksum"], 16), int(one["checksum"], 16)) == (
            checksum(old), checksum(new),
        )  # fmt: skip
        assert one["kind"] == ("none" if old == new else "delta")
        assert one["shape"] == [length for _, length in one["slice"]]


def test_receiver_takes_the_shorter_path(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(folder, 6, keep=4)
    read: list[str] = []
    real = _files.read_delta

    def read_delta(folder: Any, manifest: Any, entry: Any) -> Any:
        read.append(entry["file"])
        return real(folder, manifest, entry)

    monkeypatch.setattr(_files, "read_delta", read_delta)
    full = json.loads((folder / "v000000000005.json").read_text())
    assert full["tensors"][0]["full"] == file_of(folder, 5, "safetensors").name
    chain = sum(file_of(folder, number, "delta").stat().st_size for number in (3, 4, 5))
    assert chain < file_of(folder, 5, "safetensors").stat().st_size
    for own, files in ((2, {3, 4, 5, 6}), (None, {6})):
        read.clear()
        ours = version(2)
        delta.Receiver(folder, version=own).update(ours)
        assert set(read) == {file_of(folder, number, "delta").name for number in files}
        assert same(ours, version(6))


def test_long_chains_and_many_versions_add_full_copies(folder: pathlib.Path) -> None:
    publisher = delta.Publisher(folder, keep=3)
    for number in range(1, 40):
        publisher.publish(number, version(number))
        found = _files.versions_in(folder)
        assert number - 6 < found[0] <= max(1, number - 2)
        for own in (None, max(1, number - 2)):
            ours = version(own or 1)
            delta.Receiver(folder, version=own).update(ours)
            assert same(ours, version(number))
    assert len(list(folder.iterdir())) <= 3 * 6
    publisher, chain, fulls = delta.Publisher(folder.with_name("noise"), keep=100), 0, 0
    noise = numpy.random.default_rng(0).integers(0, 1 << 31, 10_000, numpy.int32)
    for number in range(12):
        noise[:6000] ^= number + 0x5555
        manifest = publisher.publish(number, {"a": noise})
        chain += manifest["tensors"][0]["bytes"]
        assert bool(manifest["tensors"][0]["full"]) == (number == 0 or chain > noise.nbytes)
        if manifest["tensors"][0]["full"]:
            chain, fulls = 0, fulls + 1
    assert 2 < fulls < 8


def test_torch_bf16_and_float8_with_tied_weights(folder: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")

    def model(number: int) -> dict[str, Any]:
        torch.manual_seed(0)
        embedding = torch.randn(50, 8).to(torch.bfloat16)
        embedding.view(torch.int16)[:5] += number
        small = torch.randn(9).to(torch.float8_e4m3fn)
        scale = torch.tensor(float(number))
        return {"embed": embedding, "head": embedding, "small": small, "scale": scale}

    def bits(tensors: dict[str, Any]) -> dict[str, Any]:
        found = {name: one.reshape(-1).view(torch.uint8) for name, one in tensors.items()}
        return {name: one.numpy() for name, one in found.items()}

    publisher, receiver, ours = delta.Publisher(folder), delta.Receiver(folder), model(9)
    for number in (1, 2, 3):
        manifest = publisher.publish(number, model(number))
        assert receiver.update(ours) == number
        assert same(bits(ours), bits(model(number)))
        assert ours["head"] is ours["embed"]
    assert manifest["aliases"] == {"head": "embed"}
    late = model(9)
    del late["embed"]  # known by its other name
    assert delta.Receiver(folder).update(late) == 3
    assert same(bits(late), bits(model(3)))
    untied = {**model(9), "head": model(9)["embed"]}
    with pytest.raises(tersor.InvalidArgumentError, match='"head" and "embed" share memory'):
        delta.Receiver(folder).update(untied)
    tied = model(3)
    tied["scale"] = tied["scale2"] = torch.tensor(1.0)
    with pytest.raises(tersor.InvalidArgumentError, match="share memory"):
        delta.Receiver(folder).update(tied)
    from safetensors.torch import load_file

    full = load_file(file_of(folder, 1, "safetensors"))
    assert same(bits(full), bits(model(1)))


def writes(monkeypatch: pytest.MonkeyPatch, stop: Callable[[], None]) -> list[int]:
    """Calls ``stop`` at call number ``left[0]`` of the functions that write files."""
    left = [0]
    modules = [(os, "fsync"), (os, "replace"), (pathlib.Path, "write_text")]
    modules += [(__import__("safetensors.numpy").numpy, "save_file"), (pathlib.Path, "unlink")]

    def wrapped(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                stop()
            result = real(*arguments, **options)
            left[0] -= 1
            if left[0] == 0:
                stop()
            return result

        return call

    for module, name in modules:
        monkeypatch.setattr(module, name, wrapped(getattr(module, name)))
    return left


def test_full_disk_keeps_previous_versions(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    left = writes(monkeypatch, stop)
    publisher, receiver = delta.Publisher(folder, keep=2), delta.Receiver(folder)
    first, number, complete, failures, ours = 0, 0, 0, 0, weights()
    while left[0] <= 0:
        first += 1
        left[0] = first
        for _ in range(4):  # with a full copy, without, and with deleted versions
            number += 1
            try:
                publisher.publish(number, version(number))
            except OSError:
                failures += 1
                if number in _files.versions_in(folder):  # only the last sync failed
                    complete = number
            else:
                complete = number
            if complete:
                assert receiver.update(ours) == complete
                assert same(ours, version(complete))
    assert failures > 30


def test_interrupt_at_any_line_leaves_a_complete_version(folder: pathlib.Path) -> None:
    publisher, receiver = delta.Publisher(folder, keep=2), delta.Receiver(folder)
    number, line, kept, failed = 1, 1, 0, 0
    publisher.publish(number, version(number))
    ours = weights()
    receiver.update(ours)
    more = True
    while more:
        number, line, was = number + 1, line + 7, _files.versions_in(folder)[-1]
        publish = functools.partial(publisher.publish, number, version(number))
        more = interrupted(publish, line)
        newest = _files.versions_in(folder)[-1]
        failed += newest != number
        more |= interrupted(lambda: receiver.update(ours), line)
        kept += same(ours, version(was))
        assert same(ours, version(was)) or same(ours, version(newest))
        try:
            receiver.update(ours)
        except delta.BaseMismatchError:  # interrupted after the writes
            receiver.update(ours)
        assert receiver.version == newest
        assert same(ours, version(newest))
    assert failed > 10 < kept


def test_missing_and_used_versions_are_rejected(folder: pathlib.Path) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="there is no version yet"):
        delta.Receiver(folder).update(weights())
    publisher = published(folder, 2)
    for number in (2, 1, -1, 10**12):
        with pytest.raises(tersor.InvalidArgumentError, match="version is"):
            publisher.publish(number, version(3))
    with pytest.raises(tersor.InvalidArgumentError, match="give a number above 2"):
        delta.Publisher(folder).publish(2, version(3))
    with pytest.raises(tersor.InvalidArgumentError, match="keep is 0"):
        delta.Publisher(folder, keep=0)
    with pytest.raises(tersor.InvalidArgumentError, match="no path leads to version 9: version 9"):
        delta.Receiver(folder).update(version(1), 9)
    delta.Publisher(folder).publish(5, version(5))  # after a restart: a full copy
    ours = version(2)
    assert delta.Receiver(folder, version=2).update(ours) == 5
    assert same(ours, version(5))


def test_base_mismatch_raises_and_the_next_update_uses_a_full_copy(folder: pathlib.Path) -> None:
    published(folder, 4)
    receiver, ours = delta.Receiver(folder, version=3), version(3)
    ours["steps"][0] += 1
    kept = {name: one.copy() for name, one in ours.items()}
    with pytest.raises(delta.BaseMismatchError, match='tensor "steps" is not the base'):
        receiver.update(ours)
    assert same(ours, kept)
    assert receiver.version is None
    assert receiver.update(ours) == 4
    assert same(ours, version(4))
    (folder / "v000000000003.json").unlink()  # a missing link
    ours = version(2)
    with pytest.raises(tersor.InvalidArgumentError, match="version 3 is missing"):
        delta.Receiver(folder, version=2).update(ours)
    file_of(folder, 2, "delta").unlink()
    with pytest.raises(OSError, match=r"0002\..*\.delta"):
        delta.Receiver(folder, version=1).update(ours, 2)
    assert same(ours, version(2))


def test_delta_of_another_training_is_rejected(folder: pathlib.Path) -> None:
    for place, at in ((folder, 0), (folder.with_name("other"), 1)):  # of the same base
        publisher = published(place, 1)
        new = version(2)
        new["steps"][at] += 1
        publisher.publish(2, new)
    shutil.copy(file_of(folder.with_name("other"), 2, "delta"), file_of(folder, 2, "delta"))
    data = json.loads((folder / f"{SECOND}.json").read_text())
    del data["sha256"]
    ours = version(1)
    with pytest.raises(tersor.WireError, match="does not belong to version 2"):
        delta.Receiver(folder, version=1).update(ours)
    shutil.copy(folder / "v000000000001.json", folder / f"{SECOND}.json")
    with pytest.raises(tersor.WireError, match="this is the manifest of version 1"):
        delta.Receiver(folder, version=1).update(ours)
    assert same(ours, version(1))
    _files.write_json(folder / f"{SECOND}.json", {**data, "format_version": 2})
    with pytest.raises(tersor.InvalidArgumentError, match=r"reads tersor\.delta 1"):
        delta.Receiver(folder, version=1).update(ours)


def test_files_are_synced_before_they_are_renamed(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace, link = os.fsync, os.replace, os.link

    def logged_sync(handle: int) -> None:
        steps.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{handle}'))}")
        sync(handle)

    def logged(rename: Callable[..., None]) -> Callable[..., None]:
        def call(source: pathlib.Path, to: pathlib.Path) -> None:
            steps.append(f"name {to.name}")
            assert not to.exists()
            rename(source, to)

        return call

    monkeypatch.setattr(os, "fsync", logged_sync)
    monkeypatch.setattr(os, "replace", logged(replace))
    monkeypatch.setattr(os, "link", logged(link))
    publisher = delta.Publisher(folder, keep=1)
    publisher.publish(1, version(1))
    steps.clear()
    publisher.publish(2, version(2))
    token = file_of(folder, 2, "delta").name.split(".")[1]
    names = [f"{SECOND}.{suffix}" for suffix in (f"{token}.delta", f"{token}.safetensors", "json")]
    expected = [one for name in names for one in (f"sync .{name}", f"name {name}", "sync versions")]
    assert [re.sub(r"\.[0-9a-f]{8}\.tmp$", "", step) for step in steps] == expected


def test_model_mismatch_raises(folder: pathlib.Path) -> None:
    published(folder, 2)
    for change, words in [
        ({"layer.bias": numpy.zeros(34, numpy.float32)}, r'"layer.bias" is float32, shape \[34\]'),
        ({"steps": numpy.zeros(10, numpy.int64)}, r"int64, shape \[10\]"),
        ({"more": numpy.zeros(1, numpy.int8)}, '"more" is .* in version [12]: missing'),
        ({"scale": None}, 'these weights have no tensor "scale"'),
    ]:
        given = {**version(1), **change}
        given = {name: one for name, one in given.items() if one is not None}
        for own in (1, None):
            with pytest.raises(tersor.InvalidArgumentError, match=words):
                delta.Receiver(folder, version=own).update(given)
    publisher = delta.Publisher(folder)
    publisher.publish(3, version(3))
    bigger = {**version(4), "more": numpy.zeros(1, numpy.int8)}
    manifest = publisher.publish(4, bigger)  # another model: only a full copy
    assert manifest["base_version"] is None
    ours = {name: one.copy() for name, one in bigger.items()}
    assert delta.Receiver(folder).update(ours) == 4


def damage(data: bytes, rng: random.Random) -> bytes:
    """Returns other bytes: flipped bits, or bytes removed, repeated, inserted or cut off."""
    at, kind = rng.randrange(len(data)), rng.randrange(6)
    length = rng.randrange(1, 40)
    changed = bytearray(data)
    if kind <= 2:
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 3:
        del changed[at:]
    elif kind == 4:
        changed[at : at + length] = changed[at + length : at + 2 * length]
    else:
        changed[at:at] = rng.randbytes(length)
    return bytes(changed)


def refuse_mutations(count: int, seed: int) -> None:
    rng, base = random.Random(seed), {"a": weights()["layer.bias"], "b": weights()["steps"]}
    new = {name: stepped(weights())[key] for name, key in (("a", "layer.bias"), ("b", "steps"))}
    data, refused = delta.encode(base, new).data, 0
    kept = {name: one.copy() for name, one in base.items()}
    while refused < count:
        bad = damage(data, rng)
        if bad == data:
            continue
        with pytest.raises(tersor.WireError):
            delta.apply(base, delta.Delta(bad))
        refused += 1
    assert same(base, kept)


def test_mutated_deltas_are_rejected() -> None:
    refuse_mutations(4000, 1)


@pytest.mark.long
def test_a_million_mutated_deltas_are_rejected() -> None:
    refuse_mutations(1_000_000, 2)


@pytest.mark.parametrize("suffix", ["json", "delta", "safetensors"])
def test_mutated_files_are_rejected(folder: pathlib.Path, suffix: str) -> None:
    published(folder, 2, keep=1)
    path, rng = file_of(folder, 2, suffix), random.Random(3)
    data, own = path.read_bytes(), None if suffix == "safetensors" else 1
    ours, refused = version(1), 0
    for _ in range(250):
        path.write_bytes(bad := damage(data, rng))
        try:
            delta.Receiver(folder, version=own).update(ours)
        except tersor.Error:
            refused += 1
            assert same(ours, version(1))
        else:  # the bytes do not matter: of JSON's spaces, or padding
            assert suffix != "delta" or bad[: len(data)] == data
            assert same(ours, version(2))
            ours = version(1)
    assert refused > 200


@pytest.mark.parametrize("key", ["file", "full"])
def test_manifest_rejects_files_outside_its_folder(folder: pathlib.Path, key: str) -> None:
    published(folder, 2)
    manifest = unhashed_manifest(folder)
    path = pathlib.Path(shutil.copy(file_of(folder, 2, "delta"), folder.parent))
    for name in (f"../{path.name}", str(path)):
        manifest["tensors"][0][key] = name
        _files.write_json(folder / f"{SECOND}.json", manifest)
        ours = version(1)
        with pytest.raises(tersor.WireError, match="is not in the folder of the manifest"):
            delta.Receiver(folder, version=1).update(ours)
        assert same(ours, version(1))


def test_oversized_fields_raise_without_large_allocations(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    published(folder, 2)
    path, manifest = folder / f"{SECOND}.json", unhashed_manifest(folder)
    tracemalloc.start()
    for key, value in (("bytes", 1 << 60), ("offset", 1 << 62), ("offset", -16)):
        changed = json.loads(json.dumps(manifest))
        changed["tensors"][0][key] = value
        _files.write_json(path, changed)
        ours = version(1)
        with pytest.raises(tersor.WireError, match="bytes"):
            delta.Receiver(folder, version=1).update(ours)
        assert same(ours, version(1))
    frame = bytearray(delta.encode(version(1), version(2)).data)
    for at in (8, 16, 24):
        for size in (1 << 40, (1 << 63) - 16):
            bad = frame.copy()
            bad[at : at + 8] = size.to_bytes(8, "little")
            (tmp_path / "bad.delta").write_bytes(bad)
            with pytest.raises(tersor.WireError):
                list(_files.read_frames(tmp_path / "bad.delta"))
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def shards(number: int, rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Half of a matrix, and a vector that both ranks have."""
    whole = version(number)["layer.weight"]
    part = numpy.ascontiguousarray(whole[35 * rank : 35 * rank + 35])
    tensors = {
        "matrix": part,
        "vector": version(number)["layer.bias"],
        f"own{rank}": part[0, :3].copy(),
    }
    return tensors, {"matrix": ((70, 300), (35 * rank, 0))}


def test_ranks_publish_and_receive_shards(folder: pathlib.Path) -> None:
    def rank(transport: tersor.Transport) -> Any:
        ours, slices = shards(0, transport.rank)
        publisher = delta.Publisher(folder, transport=transport, slices=slices, keep=3)
        receiver = delta.Receiver(folder, transport=transport, slices=slices)
        for number in range(1, 6):
            manifest = publisher.publish(number, shards(number, transport.rank)[0])
            assert receiver.update(ours) == number
            assert same(ours, shards(number, transport.rank)[0])
        for own in (4, 5):  # rank 0 takes a full copy and a link, rank 1 a link or nothing
            late = shards(own if transport.rank else 0, transport.rank)[0]
            options: Any = {"transport": transport, "slices": slices}
            options["version"] = own if transport.rank else None
            assert delta.Receiver(folder, **options).update(late) == 5
            assert same(late, shards(5, transport.rank)[0])
        return manifest

    one, other = tersor.local.run(2, rank)
    assert one == other
    assert [(e["name"], e["slice"]) for e in one["tensors"]] == [
        ("matrix", [[0, 35], [0, 300]]), ("vector", [[0, 33]]), ("own0", [[0, 3]]),
        ("matrix", [[35, 35], [0, 300]]), ("own1", [[0, 3]]),
    ]  # fmt: skip
    third = {"matrix": numpy.zeros((20, 300), numpy.float16)}
    with pytest.raises(
        tersor.InvalidArgumentError,
        match=r'"matrix" is float16, .*; in version 4: float16, .* slice \[\[0, 35\]',
    ):
        delta.Receiver(folder, slices={"matrix": ((70, 300), (50, 0))}).update(third)
    with pytest.raises(tersor.InvalidArgumentError, match="does not fit into the full shape"):
        delta.Receiver(folder, slices={"matrix": ((70, 300), (60, 0))}).update(third)


def test_replica_mismatch_raises(folder: pathlib.Path) -> None:
    def rank(transport: tersor.Transport) -> None:
        ours, slices = shards(1, transport.rank)
        ours["vector"][0] += transport.rank
        publisher = delta.Publisher(folder, transport=transport, slices=slices)
        words = 'rank 0: tensor "vector" has different values on two ranks'
        with pytest.raises(tersor.InvalidArgumentError, match=words):
            publisher.publish(1, ours)

    tersor.local.run(2, rank)
    assert _files.versions_in(folder) == []


def test_manifest_mismatch_between_ranks_raises(folder: pathlib.Path) -> None:
    published(folder, 2)
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    manifest = unhashed_manifest(other)
    _files.write_json(other / f"{SECOND}.json", {**manifest, "metadata": {"run": "another"}})

    def rank(transport: tersor.Transport) -> None:
        place, ours = other if transport.rank == 1 else folder, version(1)
        receiver = delta.Receiver(place, version=1, transport=transport)
        with pytest.raises(tersor.InvalidArgumentError, match="rank 1 has version 2 with hash"):
            receiver.update(ours)
        assert same(ours, version(1))

    tersor.local.run(3, rank)


def test_weights_of_a_wrong_version_raise(folder: pathlib.Path) -> None:
    published(folder, 2)
    ours, receiver = version(1), delta.Receiver(folder, version=2)
    with pytest.raises(delta.BaseMismatchError, match="is not of version 2"):
        receiver.update(ours)
    assert same(ours, version(1))
    assert receiver.update(ours) == 2
    assert same(ours, version(2))
    with pytest.raises(tersor.InvalidArgumentError, match=r'"zzz" is .*: missing'):
        delta.Receiver(folder, version=2).update({"zzz": numpy.zeros(7)})
    with pytest.raises(tersor.InvalidArgumentError, match="no path leads to version 7"):
        delta.Receiver(folder.with_name("missing"), version=7).update(ours, 7)


def test_reused_version_number_of_a_restarted_training_raises(folder: pathlib.Path) -> None:
    published(folder, 1)
    ours, receiver = version(0), delta.Receiver(folder)
    receiver.update(ours)
    shutil.rmtree(folder)
    delta.Publisher(folder).publish(1, version(9))
    with pytest.raises(delta.BaseMismatchError, match="is not of version 1"):
        receiver.update(ours)
    assert receiver.update(ours) == 1
    assert same(ours, version(9))


def test_own_weights_are_not_checksummed_again(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(folder, 2)
    ours, receiver = version(1), delta.Receiver(folder, version=1)
    receiver.update(ours)
    monkeypatch.setattr(_files, "checksums", None)
    assert receiver.update(ours) == 2


def test_new_arrays_at_an_old_address_are_checked(folder: pathlib.Path) -> None:
    published(folder, 1)
    memory = {name: one.copy() for name, one in version(0).items()}
    ours, receiver = {name: one[...] for name, one in memory.items()}, delta.Receiver(folder)
    assert receiver.update(ours) == 1
    for one in memory.values():
        one.fill(0)
    ours = {name: one[...] for name, one in memory.items()}
    with pytest.raises(delta.BaseMismatchError, match="is not of version 1"):
        receiver.update(ours)
    assert receiver.update(ours) == 1
    assert same(ours, version(1))


def test_failed_update_invalidates_cached_checks(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(folder, 2)
    ours, receiver = version(0), delta.Receiver(folder)
    assert receiver.update(ours, 1) == 1
    real = _transaction.Part.write

    def failing(part: Any, undo: Any) -> None:
        real(part, undo)
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(_transaction.Part, "write", failing)
    monkeypatch.setattr(_transaction, "_restore", lambda _: None)
    with pytest.raises(OSError, match="input/output"):
        receiver.update(ours)
    with pytest.raises(delta.BaseMismatchError, match="is not of version 1"):
        receiver.update(ours, 1)


def test_changed_torch_tensors_are_checked_again(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    model, count = torch.nn.Linear(30, 40), []
    delta.Publisher(folder).publish(1, torch.nn.Linear(30, 40).state_dict())
    receiver, real = delta.Receiver(folder), _files.checksums
    monkeypatch.setattr(_files, "checksums", lambda *given: count.append(1) or real(*given))
    receiver.update(model.state_dict())
    count.clear()
    for _ in range(3):
        assert receiver.update(model.state_dict()) == 1
    assert count == []
    model.bias.data.mul_(1)  # .data has a count of its own
    assert receiver.update({name: one.data for name, one in model.named_parameters()}) == 1
    model.bias.data.zero_()
    for change in (
        lambda: torch.nn.init.zeros_(model.weight),
        lambda: model.state_dict()["bias"].zero_(),
        lambda: model.load_state_dict(torch.nn.Linear(30, 40).state_dict(), assign=True),
    ):
        with contextlib.suppress(delta.BaseMismatchError):
            receiver.update(model.state_dict())
        assert receiver.update(model.state_dict()) == 1
        change()
        with pytest.raises(delta.BaseMismatchError, match="is not of version 1"):
            receiver.update(model.state_dict())
    parts = {name: one.data for name, one in model.named_parameters()}
    receiver.update(parts)
    model.bias.data.zero_()
    parts = {name: one.data for name, one in model.named_parameters()}
    with pytest.raises(delta.BaseMismatchError, match='"bias" is not of version 1'):
        receiver.update(parts)
    with torch.inference_mode():
        parts = {name: torch.zeros_like(one) for name, one in parts.items()}
        receiver.update(parts)
        parts["bias"].zero_()
    with pytest.raises(delta.BaseMismatchError, match='"bias" is not of version 1'):
        receiver.update(parts)


def test_transposed_view_is_rejected(folder: pathlib.Path) -> None:
    square = numpy.arange(4, dtype=numpy.float32).reshape(2, 2)
    with pytest.raises(tersor.InvalidArgumentError, match='"b" is not contiguous'):
        delta.Publisher(folder).publish(1, {"a": square, "b": square.T})


def test_numpy_scalars_are_rejected(folder: pathlib.Path) -> None:
    old, new = {"s": numpy.float32(1)}, {"s": numpy.float32(2)}
    arrays = {name: numpy.array(one) for name, one in old.items()}
    same_delta = delta.encode(arrays, arrays)
    delta.Publisher(folder).publish(1, arrays)
    for call in (
        lambda: delta.encode(old, new),
        lambda: delta.apply(old, same_delta),
        lambda: delta.apply(old, [same_delta]),
        lambda: delta.Publisher(folder).publish(2, old),
        lambda: delta.Receiver(folder, version=1).update(old),
    ):
        with pytest.raises(tersor.InvalidArgumentError, match='"s" is a float32: pass a NumPy'):
            call()


@pytest.mark.parametrize("others", [{"b": 5.0}, {"c": 1.0, "b": "c"}])
def test_weights_shared_on_some_ranks_only_are_rejected(
    folder: pathlib.Path, others: dict[str, Any]
) -> None:
    def rank(transport: tersor.Transport) -> None:
        tied = numpy.ones(3, numpy.float32)
        ours = {"a": tied, "b": tied}
        if transport.rank == 1:
            ours = {name: numpy.full(3, value, numpy.float32) for name, value in others.items()
                    if not isinstance(value, str)}  # fmt: skip
            ours |= {name: ours[one] for name, one in others.items() if isinstance(one, str)}
        with pytest.raises(tersor.InvalidArgumentError, match=r'"b" and .* share memory on some'):
            delta.Publisher(folder, transport=transport).publish(1, ours)

    tersor.local.run(2, rank)
    assert _files.versions_in(folder) == []


def test_bool_and_uint8_are_distinct_types(folder: pathlib.Path) -> None:
    publisher = delta.Publisher(folder)
    publisher.publish(1, {"mask": numpy.uint8([2, 3])})
    with pytest.raises(
        tersor.InvalidArgumentError, match=r'"mask" is bool, .* in version 1: uint8'
    ):
        delta.Receiver(folder).update({"mask": numpy.zeros(2, bool)})
    assert publisher.publish(2, {"mask": numpy.ones(2, bool)})["base_version"] is None


def test_float8_variants_are_distinct_types(folder: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    delta.Publisher(folder).publish(1, {"w": torch.ones(4).to(torch.float8_e4m3fn)})
    ours = {"w": torch.zeros(4).to(torch.float8_e4m3fnuz)}
    with pytest.raises(tersor.InvalidArgumentError, match=r"is float8_e4m3fnuz, .*float8_e4m3fn,"):
        delta.Receiver(folder).update(ours)


def test_failed_publish_leaves_no_version(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = published(folder, 1)
    sync = _files._sync

    def failing(path: pathlib.Path) -> None:
        if path == folder and (folder / f"{SECOND}.json").exists():
            raise OSError(errno.EIO, "input/output error")
        sync(path)

    monkeypatch.setattr(_files, "_sync", failing)
    with pytest.raises(OSError, match="input/output"):
        publisher.publish(2, version(2))
    monkeypatch.undo()
    assert _files.versions_in(folder) == [1]
    assert publisher.publish(2, version(2))["base_version"] == 1


def test_late_failure_on_one_rank_leaves_no_version(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _files.read_json
    fails = [True]

    def read_json(path: pathlib.Path) -> dict[str, Any]:
        if fails[0] and path.name.endswith("r1.part") and threading.current_thread().name == "1":
            raise OSError(errno.ENOENT, "no such file")
        return real(path)

    monkeypatch.setattr(_files, "read_json", read_json)
    meeting = threading.Barrier(2)

    def rank(transport: tersor.Transport) -> None:
        threading.current_thread().name = str(transport.rank)
        ours, slices = shards(1, transport.rank)
        publisher = delta.Publisher(folder, transport=transport, slices=slices)
        with pytest.raises(tersor.Error, match=r"rank 1: .*no such file"):
            publisher.publish(1, ours)
        assert _files.versions_in(folder) == []
        meeting.wait(60)
        fails[0] = False
        assert publisher.publish(1, ours)["version"] == 1

    tersor.local.run(2, rank)


def test_ranks_with_different_bases_publish_full_copies(folder: pathlib.Path) -> None:
    def rank(transport: tersor.Transport) -> None:
        ours, slices = shards(1, transport.rank)
        publisher = delta.Publisher(folder, transport=transport, slices=slices)
        publisher.publish(1, ours)
        base = publisher.weights
        publisher.publish(2, shards(2, transport.rank)[0])
        if transport.rank == 1:  # as after an interrupt behind the last vote
            publisher.version, publisher.weights = 1, base
        manifest = publisher.publish(3, shards(3, transport.rank)[0])
        assert manifest["base_version"] is None
        ours = shards(2, transport.rank)[0]
        receiver = delta.Receiver(folder, version=2, transport=transport, slices=slices)
        assert receiver.update(ours) == 3
        assert same(ours, shards(3, transport.rank)[0])

    tersor.local.run(2, rank)


def test_rank_may_drop_its_tensors(folder: pathlib.Path) -> None:
    def rank(transport: tersor.Transport) -> None:
        publisher = delta.Publisher(folder, transport=transport)
        for number in (1, 2):
            value = numpy.full(3, number, numpy.float32)
            ours = {"a": value} if transport.rank == 0 else {"b": value} if number == 1 else {}
            manifest = publisher.publish(number, ours)
            assert manifest["base_version"] is None

    tersor.local.run(2, rank)
    ours = {"a": numpy.zeros(3, numpy.float32)}
    assert delta.Receiver(folder).update(ours) == 2
    assert ours["a"].tolist() == [2, 2, 2]


def test_concurrent_publishers_do_not_mix_files(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = published(folder, 1), delta.Publisher(folder)
    second.publish(2, version(2))
    first.publish(3, version(3))
    real, inner = first._combine, []

    def combine(*given: Any) -> Any:
        if not inner:  # meanwhile, the other publisher writes the same version
            inner.append(second.publish(4, version(44)))
        return real(*given)

    monkeypatch.setattr(first, "_combine", combine)
    with pytest.raises(FileExistsError):
        first.publish(4, version(4))
    ours = version(0)
    assert delta.Receiver(folder).update(ours) == 4
    assert same(ours, version(44))


def test_symlinks_are_not_followed(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = published(folder, 1)
    precious = folder.parent / "precious"
    precious.write_text("mine")
    monkeypatch.setattr(_files.secrets, "token_hex", lambda _: "0" * 8)
    (folder / f".{SECOND}.json.00000000.tmp").symlink_to(precious)
    with pytest.raises(FileExistsError):
        publisher.publish(2, version(2))
    assert precious.read_text() == "mine"


def test_publishing_without_hard_links(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "operation not permitted")

    monkeypatch.setattr(os, "link", link)
    publisher = published(folder, 2)
    assert _files.versions_in(folder) == [1, 2]
    publisher._suffix = ".00000000"  # each call of publish makes another
    with pytest.raises(FileExistsError):
        publisher._commit(2, {"other": 1}, "")
    assert _files.versions_in(folder) == [1, 2]
    real, raced = os.replace, []

    def replace(temporary: pathlib.Path, path: pathlib.Path) -> None:
        if path.name == "v000000000003.json":  # meanwhile, another publisher writes the version
            with pytest.raises(FileExistsError):
                _files.write_json(path, {"other": 1}, is_new=True)
            raced.append(path)
        real(temporary, path)

    monkeypatch.setattr(os, "replace", replace)
    publisher.publish(3, version(3))
    ours = version(0)
    assert raced
    assert delta.Receiver(folder).update(ours) == 3
    assert same(ours, version(3))
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(
    "change",
    [
        {"base_version": 2}, {"base_version": -1}, {"base_version": "1"}, {"tensors": [{}]},
        {"tensors": 1}, {"aliases": []}, {"aliases": {"a": 1}}, {"version": "2"},
        {"model": [1]}, {"model": None},
    ],
)  # fmt: skip
def test_invalid_manifest_members_are_rejected(
    folder: pathlib.Path, change: dict[str, Any]
) -> None:
    published(folder, 2)
    manifest = unhashed_manifest(folder)
    _files.write_json(folder / f"{SECOND}.json", {**manifest, **change})
    ours = version(1)
    with pytest.raises(tersor.WireError):
        delta.Receiver(folder, version=1).update(ours)
    for key in manifest["tensors"][0].keys() - {"kind", "classes", "changed"}:
        one = {name: value for name, value in manifest["tensors"][0].items() if name != key}
        _files.write_json(folder / f"{SECOND}.json", {**manifest, "tensors": [one]})
        with pytest.raises(tersor.WireError):
            delta.Receiver(folder, version=1).update(ours)
    assert same(ours, version(1))


def test_alternating_publishers_keep_a_full_copy(folder: pathlib.Path) -> None:
    publishers = [delta.Publisher(folder, keep=3), delta.Publisher(folder, keep=3)]
    for number in range(1, 30):
        publishers[number % 7 < 4].publish(number, version(number))
        ours = version(0)
        assert delta.Receiver(folder).update(ours) == number
        assert same(ours, version(number))


def test_foreign_files_survive_and_do_not_block_deletion(folder: pathlib.Path) -> None:
    foreign = {".tmp", ".tmp-upload", "v000000000001.backup", "v000000000001.notes.txt"}
    blocking = {".tmpA1b2C3", "v000000000001.json.00000000.tmp", "v000000000000.part"}
    for name in blocking:
        (folder / name).mkdir(parents=True)
    for name in foreign:
        (folder / name).write_text("mine")
    published(folder, 20, keep=2)
    names = {path.name for path in folder.iterdir()}
    assert foreign | blocking < names
    assert len(names - foreign - blocking) < 12


def test_failed_publish_leaves_no_files(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: pathlib.Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    def rank(transport: tersor.Transport) -> None:
        ours, slices = shards(1, transport.rank)
        publisher = delta.Publisher(folder, transport=transport, slices=slices)
        with pytest.raises(tersor.Error, match="no space left"):
            publisher.publish(3, ours)

    publisher = published(folder, 1)
    before = set(folder.iterdir())
    real = _files.write_json
    for suffix in ("safetensors", "delta", "part", "json"):
        name = {"safetensors": "save_weights", "delta": "write_frames"}.get(suffix, "write_json")

        def broken(path: pathlib.Path, *given: Any, _suffix: str = suffix, **options: Any) -> None:
            (failing if path.suffix == f".{_suffix}" else real)(path, *given, **options)

        with monkeypatch.context() as patch:
            patch.setattr(_files, name, broken)
            if suffix != "part":
                source = delta.Publisher(folder) if suffix == "safetensors" else publisher
                with pytest.raises(OSError, match="no space left"):
                    source.publish(2, version(2))
            if suffix != "delta":
                tersor.local.run(2, rank)
        assert set(folder.iterdir()) == before
    with pytest.raises(tersor.InvalidArgumentError, match="there are no tensors"):
        delta.Publisher(folder).publish(2, {})
    with pytest.MonkeyPatch.context() as patch:  # another publisher wins
        patch.setattr(publisher, "_combine", lambda *given: (
            delta.Publisher(folder).publish(2, version(22)),
            delta.Publisher._combine(publisher, *given))[1])  # fmt: skip
        with pytest.raises(FileExistsError):
            publisher.publish(2, version(2))
    assert len(set(folder.iterdir()) - before) == 2
    ours = version(0)
    assert delta.Receiver(folder).update(ours) == 2
    assert same(ours, version(22))


def test_numpy_integers_are_valid_versions_and_bools_are_not(folder: pathlib.Path) -> None:
    publisher = delta.Publisher(folder, slices={"a": (numpy.array([4]), numpy.array([2]))})
    ours = {"a": numpy.ones(2, numpy.float32)}
    assert type(publisher.publish(numpy.int64(1), ours)["version"]) is int
    assert publisher.publish(numpy.int64(2), ours)["tensors"][0]["slice"] == [[2, 2]]
    for broken in (True, False):
        with pytest.raises(tersor.InvalidArgumentError, match=r"version is (True|False)"):
            delta.Publisher(folder.with_name("bools")).publish(broken, ours)
    publisher = delta.Publisher(other := folder.with_name("other"), metadata={"a": numpy.ones(1)})
    with pytest.raises(TypeError, match="not JSON"):
        publisher.publish(1, ours)
    assert not other.exists()


def test_reserved_metadata_name_is_rejected(folder: pathlib.Path) -> None:
    ours = {"__metadata__": numpy.ones(1, numpy.float32), "a": numpy.ones(1, numpy.float32)}
    with pytest.raises(tersor.InvalidArgumentError, match='with the name "__metadata__"'):
        delta.Publisher(folder).publish(1, ours)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"file": "a\0b"}, {"full": "a\0b"}, {"file": "\ud800"}, {"name": "\ud800"}, {"file": 1},
        {"changed": "x"}, {"changed": None}, {"bytes": True}, {"checksum": 1}, {"slice": [3]},
    ],
)  # fmt: skip
def test_invalid_manifest_entries_are_rejected(
    folder: pathlib.Path, change: dict[str, Any]
) -> None:
    published(folder, 2)
    manifest = unhashed_manifest(folder)
    manifest["tensors"][0] |= change
    _files.write_json(folder / f"{SECOND}.json", manifest)
    with pytest.raises(tersor.WireError):
        _files.read_manifest(folder, 2)


@pytest.mark.parametrize("key", ["format", "format_version", "model"])
def test_missing_manifest_members_are_rejected(folder: pathlib.Path, key: str) -> None:
    published(folder, 1)
    path = folder / "v000000000001.json"
    manifest = json.loads(path.read_text())
    _files.write_json(path, {name: manifest[name] for name in manifest.keys() - {key, "sha256"}})
    with pytest.raises(tersor.WireError, match=key):
        _files.read_manifest(folder, 1)


def test_empty_models_and_fractional_versions_are_rejected(folder: pathlib.Path) -> None:
    publisher = delta.Publisher(folder)
    with pytest.raises(tersor.InvalidArgumentError, match="there are no tensors"):
        publisher.publish(1, {})
    with pytest.raises(TypeError):
        publisher.publish(1.5, version(1))  # type: ignore[arg-type]
    assert _files.versions_in(folder) == []
