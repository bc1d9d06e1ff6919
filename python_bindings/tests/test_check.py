"""``python -m tersor check``: figures, verdict, ranks and errors."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from pages import output_on_ranks

from tersor import check
from tersor.__main__ import main


def codec(name: str, seconds: float = 1e-9, bits: float = 8) -> check.CodecResult:
    return check.CodecResult(name, "cpu", bits, seconds, seconds, 0.0)


def test_single_process_measures_codecs(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "check.json"
    command = [sys.executable, "-m", "tersor", "check", "--seconds", "0.1"]
    command += ["--codecs", "int8", "bf16", "--json", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "int8 saves time on links below" in ended.stdout
    report = json.loads(file.read_text())
    int8, bf16 = report["codecs"]
    assert (int8["codec"], bf16["codec"]) == ("int8", "bf16")
    assert bf16["bits_per_value"] == pytest.approx(16, abs=0.01)
    assert int8["bits_per_value"] == pytest.approx(8.13, abs=0.02)
    assert 0 < bf16["squared_error"] < int8["squared_error"] < 1e-3
    assert report["link"] == []
    assert report["ranks"] == 1


def test_two_processes_measure_their_link(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "check.json"
    command = ("check", "--seconds", "0.2", "--codecs", "int8", "int4+ef", "--json", file)
    printed, _ = output_on_ranks("-m", "tersor", *command)
    assert printed.count("The link carries") == 1  # rank 0 alone prints
    report = json.loads(file.read_text())
    assert report["ranks"] == 2
    measured = {(one["codec"], one["bytes"]) for one in report["link"]}
    sizes = (1 << 16, 1 << 20, 1 << 24)
    assert measured == {(spec, size) for spec in ("none", "int8", "int4+ef") for size in sizes}
    assert all(one["seconds"] > 0 and one["calls"] >= 3 for one in report["link"])


def test_break_even_bandwidth() -> None:
    # 2 ranks: 24 bits saved per value; (1.5 encodes + 2 decodes) of 1 ns.
    assert check._break_even(codec("int8"), 2) == pytest.approx(24 / 3.5e-9)
    # 4 ranks: 48 bits uncompressed, three frames of 8 bits; one encode and 4 decodes.
    assert check._break_even(codec("topk"), 4) == pytest.approx(24 / 5e-9)


@pytest.mark.parametrize(("seconds", "said"), [(0.1, "int8 takes"), (0.5, "No codec pays")])
def test_verdict(seconds: float, said: str) -> None:
    link = [
        check.LinkResult("none", 1 << 20, 0.2, 3),
        check.LinkResult("int8", 1 << 20, seconds, 3),
    ]
    verdict = check._verdict([codec("int8")], link, 2, (1 << 20) / 4, compute_ms=100)
    assert any(sentence.startswith(said) for sentence in verdict)
    gain = "int8 would make a step with 100 ms of computation 1.5x faster"
    assert any(sentence.startswith(gain) for sentence in verdict) == (seconds == 0.1)


def test_verdict_with_codec_none_only() -> None:
    link = [check.LinkResult("none", 1 << 20, 0.2, 3)]
    verdict = check._verdict([codec("none", bits=33)], link, 2, (1 << 20) / 4, compute_ms=100)
    assert verdict[0].startswith("none saves no time")
    assert verdict[-1].startswith("The link carries")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["check", "--codecs", "int7"], 1, "int7"),
        (["check", "--seconds", "0.1", "--json", "/no/x.json"], 1, "tersor check: [Errno 2]"),
        (["check", "--seconds", "0"], 2, "not between 0 and"),
        (["check", "--parameters", "nan"], 2, "not between 0 and"),
        ([], 2, "usage: python -m tersor check"),
    ],
)
def test_errors(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(arguments))
    assert ended.value.code == status
    assert message in capsys.readouterr().err
