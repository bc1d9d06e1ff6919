"""Finds and runs cuobjdump, ptxas and the demangler."""

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import typing

PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin")
PACKAGES = "lib/python3*/site-packages/nvidia/*/bin"  # programs of the pip packages
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


class ReportError(Exception):
    """An error that the user can fix."""


class MissingTool(ReportError):
    """A program that is not installed."""


class Usage(typing.NamedTuple):
    registers: int
    stack_bytes: int
    shared_bytes: int
    local_bytes: int


def find_cuobjdump(environments: typing.Iterable[pathlib.Path]) -> str:
    """Searches PATH, CUDA's folders and the virtual `environments`."""
    folders = [*_path(), *PLACES]
    for environment in (*environments, pathlib.Path(sys.prefix)):
        folders += glob.glob(f"{environment}/{PACKAGES}")
    if program := shutil.which("cuobjdump", path=os.pathsep.join(folders)):
        return program
    raise MissingTool(
        "no cuobjdump on PATH, in CUDA's bin or in build/venv; to get one: python3 -m venv "
        "build/venv && build/venv/bin/pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    )


def _path() -> list[str]:
    return os.environ.get("PATH", "").split(os.pathsep)


class ObjectDump:
    """cuobjdump for one architecture. cuobjdump finds nvdisasm in the same folder."""

    def __init__(self, program: str, architecture: str) -> None:
        self.program, self.architecture = program, architecture

    def usages(self, file: pathlib.Path) -> dict[str, Usage]:
        """Returns the resource usage of each function, by mangled name."""
        return parse_usages(self._run("-res-usage", file))

    def with_code(self, file: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
        """Returns the file. Without code for the architecture, assembles the PTX into `folder`."""
        if self.usages(file):
            return file
        place = pathlib.Path(tempfile.mkdtemp(dir=folder))
        self._run("-xptx", "all", file.absolute(), where=place)
        assembled = place / f"{file.stem}.cubin"
        for text in place.glob("*.ptx"):
            assemble(text, self.architecture, assembled)
        return assembled if assembled.exists() else file

    def machine_code(self, file: pathlib.Path, functions: list[str]) -> str:
        return self._run("-sass", "-fun", ",".join(functions), file) if functions else ""

    def _run(self, *arguments: str | pathlib.Path, where: pathlib.Path | None = None) -> str:
        path = os.pathsep.join([str(pathlib.Path(self.program).parent), *_path()])
        filters = [] if where else ["-arch", self.architecture]
        done = subprocess.run(
            [self.program, *filters, *map(str, arguments)], cwd=where, capture_output=True,
            text=True, env={**os.environ, "PATH": path}, check=False,
        )  # fmt: skip
        if done.returncode != 0 and "does not contain device code" not in done.stdout + done.stderr:
            raise ReportError(f"cuobjdump {arguments[-1]}: {done.stderr.strip() or 'failed'}")
        return done.stdout


def assemble(text: pathlib.Path, architecture: str, into: pathlib.Path) -> None:
    """Assembles PTX with the options that nvcc uses for the project's kernels."""
    program = shutil.which("ptxas", path=os.pathsep.join([*_path(), *PLACES]))
    if program is None:
        raise MissingTool("no ptxas on PATH or in CUDA's bin: it comes with nvcc")
    command = [program, "--fmad", "false", "-arch", architecture, "-o", str(into), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReportError(f"ptxas {text.name} for {architecture}: {done.stderr.strip()}")


def parse_usages(text: str) -> dict[str, Usage]:
    usages = {}
    function = ""
    for line in text.splitlines():
        if line.strip().startswith("Function "):
            function = line.strip().removeprefix("Function ").rstrip(":")
        elif (found := USAGE.search(line)) and function:
            usages[function] = Usage(*(int(number) for number in found.groups()))
            function = ""
    return usages


def demangle(names: list[str]) -> list[str]:
    """Returns the names unchanged if there is no demangler."""
    program = shutil.which("c++filt") or shutil.which("cu++filt")
    if program is None or not names:
        return names
    text = "\n".join(names) + "\n"
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
