"""Each example of the folder `examples` runs on its ranks and prints the promised lines."""

from __future__ import annotations

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest
from pages import DEADLINE_SECONDS, SOURCES, output_on_ranks, programs

EXAMPLES = SOURCES / "examples"
MAX_LINES = 80


def output_of(example: str, *arguments: str, count: int = 2) -> str:
    pytest.importorskip("torch")
    printed, _ = output_on_ranks(EXAMPLES / example, *arguments, count=count)
    return printed


def losses(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss'?:? '?(\d+\.\d+)", printed)]


def sent_share(printed: str) -> float:
    """Returns the sent bytes divided by the bytes without compression."""
    found = re.search(r"sent ([\d.]+) KiB (?:per step )?instead of ([\d.]+) KiB", printed)
    assert found is not None, printed
    return float(found[1]) / float(found[2])


def check_comparison(printed: str) -> None:
    """Both step times are printed, and fewer bytes with the codec. Time itself is not judged."""
    number = r"(\d+)"
    found = re.fullmatch(
        rf"without Tersor: +{number} ms and +{number} KiB per step, loss (\d+\.\d\d)\n"
        rf"with int8: +{number} ms and +{number} KiB per step, loss (\d+\.\d\d)\n"
        r"a step is \d+\.\dx as fast\n",
        printed,
    )
    assert found is not None, printed
    assert 0.2 < float(found[5]) / float(found[2]) < 0.3
    assert abs(float(found[6]) - float(found[3])) < 0.1


def test_ddp_prints_step_times_and_bytes_with_and_without_a_codec() -> None:
    check_comparison(output_of("ddp.py", "--steps", "4", "--rate", "1e9"))


def test_readme_matches_the_ddp_example_and_its_output_format() -> None:
    [block] = programs("README.md")
    shown = block.replace('"int8"', "codec").splitlines()
    lines = [line.strip() for line in (EXAMPLES / "ddp.py").read_text().splitlines()]
    assert [line for line in lines if line in shown] == shown
    text = (SOURCES / "README.md").read_text()
    [printed] = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    check_comparison(printed)


@pytest.mark.long
def test_fsdp2_trains_with_fewer_bytes() -> None:
    printed = output_of("fsdp2.py")
    first, last = losses(printed)
    assert last < first
    assert sent_share(printed) < 0.3


@pytest.mark.long  # in the part with transformers
def test_hugging_face_trainer_trains_with_fewer_bytes() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    printed = output_of("trainer.py")
    assert losses(printed)[0] < 2.3  # ln 10: the loss of a guess
    assert sent_share(printed) < 0.25


@pytest.mark.long
def test_diloco_trains_with_fewer_bytes() -> None:
    printed = output_of("diloco.py")
    first, last = losses(printed)
    assert last < first
    assert sent_share(printed) < 0.05


@pytest.mark.long
def test_reward_rises_while_weight_deltas_save_bytes() -> None:
    pytest.importorskip("safetensors")
    printed = output_of("weight_deltas.py", "--versions", "4", count=3)
    found = re.findall(r"^version (\d): reward ([\d.]+), ([\d.]+) of ([\d.]+) KiB$", printed, re.M)
    assert [number for number, *_ in found] == ["1", "2", "3", "4"]
    assert float(found[-1][1]) > float(found[0][1]) + 0.05
    assert found[0][2] == found[0][3]  # all weights
    assert all(float(sent) < 0.7 * float(full) for _, _, sent, full in found[1:])


@pytest.mark.long  # torchrun and its ranks import PyTorch
def test_slurm_job_runs_the_ddp_example(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    commands = {
        "scontrol": "echo 127.0.0.1",
        "srun": 'exec "$@"',
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    }
    for name, command in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / name).chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PORT": str(port),
        "RANKS_PER_NODE": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "one",
        "SLURM_NNODES": "1",
    }
    done = subprocess.run(
        [EXAMPLES / "slurm.sh", "--steps=4"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        cwd=SOURCES,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    check_comparison(done.stdout)


def test_kubernetes_job_has_consistent_node_counts_and_names() -> None:
    text = (EXAMPLES / "kubernetes.yaml").read_text()
    [pods] = set(re.findall(r"(?:completions|parallelism|--nnodes)[:=] ?(\d+)", text))
    assert pods == "2"
    names = re.findall(r"^  name: (\S+)", text, re.MULTILINE)
    assert set(names) == {"tersor"}  # pods are reachable by the name of the service
    assert "--master-addr=tersor-0.tersor" in text
    [program] = re.findall(r"examples/\S+\.py", text)
    assert (SOURCES / program).exists()
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all(text)
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_slow_link_limits_open_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import slow_link

    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            slow_link.limit(8e6)
            rate = client.getsockopt(socket.SOL_SOCKET, slow_link.SO_MAX_PACING_RATE)
        assert rate == 1_000_000
        assert server.fileno() >= 0  # still open
        slow_link.limit(8e12)


@pytest.mark.parametrize(
    "file", [one for one in sorted(EXAMPLES.rglob("*")) if one.is_file()], ids=lambda one: one.name
)
def test_examples_are_short(file: pathlib.Path) -> None:
    if "__pycache__" not in file.parts:
        assert len(file.read_text().splitlines()) < MAX_LINES
