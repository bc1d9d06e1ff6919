"""``python -m tersor.delta``: files in, files out, and errors with exit status 1."""

from __future__ import annotations

import os
import pathlib
import runpy
import sys
from typing import Any

import pytest
from delta_models import same, stepped, weights

from tersor import delta
from tersor.delta.__main__ import main

safetensors = pytest.importorskip("safetensors.numpy", reason="no safetensors")


@pytest.fixture
def models(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    found = [weights(), stepped(weights())]
    for name, one in zip(("old", "new"), found, strict=True):
        safetensors.save_file(one, f"{name}.safetensors", {"step": name})
    return found


def test_make_verify_info_and_apply(
    models: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["make", "old.safetensors", "new.safetensors", "a.delta", "--classes", "4"]
    monkeypatch.setattr(sys, "argv", ["tersor.delta", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(pathlib.Path(delta.__file__).with_name("__main__.py")), None, "__main__")
    assert ended.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "% of new.safetensors" in printed.out
    assert main(["verify", "a.delta"]) == 0
    assert main(["info", "a.delta"]) == 0
    printed = capsys.readouterr().out
    assert "a.delta: 5 deltas, no damage" in printed
    rows = [line.split() for line in printed.splitlines()[2:]]
    assert [row[:3] for row in rows] == [
        [one.name, one.dtype, str(one.changed)]
        for one in delta.encode(*({key: m[key] for key in sorted(m)} for m in models)).entries()
    ]
    assert main(["apply", "old.safetensors", "a.delta", "old.safetensors"]) == 0  # in place
    assert same(safetensors.load_file("old.safetensors"), models[1])
    from safetensors import safe_open

    with safe_open("old.safetensors", "np") as file:
        assert file.metadata() == {"step": "old"}


def test_errors_are_reported_and_write_no_output(
    models: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["make", "old.safetensors", "new.safetensors", "a.delta"]) == 0
    data = pathlib.Path("a.delta").read_bytes()
    safetensors.save_file({"more": models[0]["steps"]}, "other.safetensors")
    pathlib.Path("bad.delta").write_bytes(data[:-1])
    pathlib.Path("cut.safetensors").write_bytes(b"12345678")
    for arguments, words in [
        (["apply", "new.safetensors", "a.delta", "out"], '"layer.bias" is not the base'),
        (["apply", "other.safetensors", "a.delta", "out"], "no tensor"),
        (["apply", "old.safetensors", "bad.delta", "out"], "bad.delta: a delta ends at byte"),
        (["apply", "cut.safetensors", "a.delta", "out"], "cut.safetensors: "),
        (["make", "old.safetensors", "other.safetensors", "out"], "is missing in one of the files"),
        (["verify", "bad.delta"], "bad.delta: a delta ends"),
        (["info", "missing.delta"], "missing.delta"),
    ]:
        assert main(arguments) == 1, arguments
        assert words in capsys.readouterr().err, arguments
        assert not pathlib.Path("out").exists()
    with pytest.raises(SystemExit):
        main(["make", "old.safetensors"])


def test_full_disk_keeps_the_old_file(
    models: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError("no space left on device")

    assert main(["make", "old.safetensors", "new.safetensors", "a.delta"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(["apply", "old.safetensors", "a.delta", "old.safetensors"]) == 1
    assert same(safetensors.load_file("old.safetensors"), models[0])
    assert not [path for path in pathlib.Path().iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("mode", [0o600, 0o440, 0o666])
def test_file_permissions_are_preserved(models: list[dict[str, Any]], mode: int) -> None:
    for name in ("old.safetensors", "a.delta"):
        pathlib.Path(name).touch()
        pathlib.Path(name).chmod(mode)
    assert main(["make", "old.safetensors", "new.safetensors", "a.delta"]) == 0
    assert main(["apply", "old.safetensors", "a.delta", "old.safetensors"]) == 0
    for name in ("old.safetensors", "a.delta"):
        assert pathlib.Path(name).stat().st_mode & 0o777 == mode
    assert same(safetensors.load_file("old.safetensors"), models[1])


def test_no_deltas_and_missing_bases_are_reported(
    models: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    pathlib.Path("empty.delta").touch()
    assert main(["verify", "empty.delta"]) == 1
    assert "empty.delta: there are no deltas" in capsys.readouterr().err
    publisher = delta.Publisher("versions", keep=4)
    for version in range(1, 5):
        publisher.publish(version, models[version % 2])
    for path in pathlib.Path("versions").glob("v000000000003.*"):
        path.unlink()
    assert main(["verify", "versions"]) == 1
    printed = capsys.readouterr()
    assert "version 4: versions: no path leads to version 4: version 3 is missing" in printed.err
    assert "2 versions without damage, 1 with damage" in printed.out
    publisher.publish(5, models[0])  # with a full copy
    assert main(["verify", "versions"]) == 0


def test_control_characters_are_escaped(
    models: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("old", "new")):
        safetensors.save_file({"\x1b[31m\u202eé": models[number]["steps"]}, f"{name}.safetensors")
    assert main(["make", "old.safetensors", "new.safetensors", "a.delta"]) == 0
    assert main(["info", "a.delta"]) == 0
    assert main(["apply", "new.safetensors", "a.delta", "out"]) == 1
    publisher = delta.Publisher("versions")
    publisher.publish(1, safetensors.load_file("old.safetensors"))
    publisher.publish(2, safetensors.load_file("new.safetensors"))
    [path] = pathlib.Path("versions").glob("*.delta")
    path.write_bytes(pathlib.Path("a.delta").read_bytes()[:-16])
    assert main(["verify", "versions"]) == 1
    printed = "".join(capsys.readouterr())
    assert printed.count("\\x1b[31m\\u202eé") >= 2
    assert "\x1b" not in printed


def test_commands_accept_version_folders(
    models: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    publisher = delta.Publisher("versions")
    for version, one in enumerate([*models, weights(3)]):
        publisher.publish(version, one)
    assert main(["info", "versions"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["0", "—"], ["1", "0"], ["2", "1"],
    ]  # fmt: skip
    assert main(["verify", "versions"]) == 0
    assert main(["apply", "old.safetensors", "versions", "a", "--base-version", "0"]) == 0
    assert main(["apply", "old.safetensors", "versions", "b", "--version", "1"]) == 0
    assert same(safetensors.load_file("a"), weights(3))
    assert same(safetensors.load_file("b"), models[1])
    [path] = pathlib.Path("versions").glob("v000000000001.*.delta")
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    capsys.readouterr()
    assert main(["verify", "versions"]) == 1
    printed = capsys.readouterr()
    assert "versions: 2 versions without damage, 1 with damage" in printed.out
    assert printed.err.startswith("version 1: ")
    assert main(["verify", "."]) == 1  # no version at all
