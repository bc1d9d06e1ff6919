"""The Python part of scripts/gpu-check: tests, and figures of two ranks over NCCL."""

import json
import os
import pathlib
import typing
import xml.etree.ElementTree

TEXT = "text.txt"  # text of the training
# For each name: arguments of `python -m tersor.bench`, and the time limit in seconds.
RUNS = {
    "backward": (
        ["backward", "--mib", "256", "--hooks", "none", "torch:bf16", "tersor:none", "bf16", "int8",
         "int4+ef", "auto"],
        60,
    ),
    "training": (
        ["train", "--model", "gpt", "--data", TEXT, "--epochs", "1", "--steps", "40",
         "--hooks", "none", "torch:bf16", "int8", "int4+ef"],
        120,
    ),
}  # fmt: skip
# Hooks and factors of the learning rate, most important first. The factors are the best at 0.8m.
TRAININGS = (
    ("none", 4), ("adamw:hadamard:bits=1+ef", 2), ("muon", 2), ("muon:hadamard:bits=1+ef", 8),
    ("adamw:blocktopk:density=0.03+ef", 8), ("muon:blocktopk:density=0.03+ef", 8),
)  # fmt: skip
# On an H200, a step took 0.1 to 0.13 s, so five or six trainings fit into a call.
TRAINING = ("--model", "gpt", "--size", "86m", "--epochs", "4", "--steps", "175", "--resume")
TRAINING_SECONDS = 150
LEAST_SECONDS = 110  # per training; with less time, the next call runs the training
TESTS = ("test_arrays.py", "test_devices.py")
TEST_SECONDS = 150


class NotRunError(Exception):
    """The reason for a skipped step."""


class Check(typing.Protocol):
    """The used part of the class in gpu-check."""

    out: pathlib.Path
    failed: bool
    ran: bool
    seconds_left: float

    def command(
        self, words: list[str], seconds: float, package: pathlib.Path, **variables: str
    ) -> tuple[int | None, str]: ...


def need(path: pathlib.Path) -> None:
    if not path.exists():
        raise NotRunError(f"there is no {path}")


def test(check: Check, package: pathlib.Path) -> str:
    """Runs the tests that need a GPU, with the machine's PyTorch and pytest."""
    need(package / "tersor")
    report = check.out / "python_test.xml"
    report.unlink(missing_ok=True)
    words = [
        "python3", "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-c", os.devnull,
        "--rootdir", "tests", f"--junitxml={report}", *(f"tests/{name}" for name in TESTS),
    ]  # fmt: skip
    # prints the stack of a rank that a signal kills
    status, output = check.command(words, TEST_SECONDS, package, PYTHONFAULTHANDLER="1")
    if status is not None and not report.exists():
        raise NotRunError(last_line(output))
    check.ran = True
    check.failed |= status != 0
    return last_line(output) if status == 0 else f"failed: {last_line(output)}{failed_in(report)}"


def failed_in(report: pathlib.Path) -> str:
    """Returns the failed tests of a report."""
    if not report.exists():
        return ""
    cases = xml.etree.ElementTree.parse(report).iter("testcase")
    bad = [case for case in cases if any(part.tag in ("failure", "error") for part in case)]
    return "".join(f", {case.get('classname')}.{case.get('name')}" for case in bad[:8])


def benchmark(check: Check, name: str, package: pathlib.Path) -> str:
    """Runs one of `RUNS` and writes the records to a file."""
    file = check.out / f"python_{name}.json"
    file.unlink(missing_ok=True)
    arguments, seconds = RUNS[name]
    if TEXT in arguments:
        need(package / TEXT)
    return run(check, arguments, seconds, package, file)


def train(check: Check, hook: str, rate: int, corpus: pathlib.Path, package: pathlib.Path) -> str:
    """Trains the GPT by a hook, unless the file of records has this training."""
    if not corpus.exists():
        made = "`python3 -m tersor.bench corpus FILE` makes one"
        raise NotRunError(f"there is no {corpus}: {made}")
    if check.seconds_left < LEAST_SECONDS:
        raise NotRunError("no time left")
    options = ["--data", str(corpus.resolve()), "--hooks", hook, "--rate", str(rate)]
    arguments = ["train", *TRAINING, *options]
    return run(check, arguments, TRAINING_SECONDS, package, check.out / "training.json")


def run(
    check: Check, arguments: list[str], seconds: float, package: pathlib.Path, file: pathlib.Path
) -> str:
    """Runs a command of `tersor.bench` on two ranks. Returns the number of records in the file."""
    need(package / "tersor")
    where = ["--device", "cuda", "--backend", "nccl", "--ranks", "2", "--json", str(file)]
    # The ranks are sessions of their own, so only the command can end them.
    limit = max(1.0, min(seconds, check.seconds_left) - 10)
    words = ["python3", "-m", "tersor.bench", *arguments, *where, "--timeout", f"{limit:.0f}"]
    status, output = check.command(words, seconds, package)
    check.ran |= status == 0
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    said = f"{len(json.loads(text)) if text else 0} figures"
    return said if status == 0 else f"{said}, then failed: {last_line(output)}"


def last_line(output: str) -> str:
    """Returns the end of the printed text, at the length of a summary."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no output"
