"""Flower's own processes on the loopback: a SuperLink, SuperNodes, and runs.

The processes use only the loopback. Telemetry, version checks and the installation of an app's
dependencies are disabled.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from tersor.bench.errors import BenchmarkError, fail_if

PROGRAMS = pathlib.Path(sys.executable).parent  # pip installs programs here
ENV = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "OMP_NUM_THREADS": "1",  # of each client
    "OPENBLAS_NUM_THREADS": "1",
}
SETTINGS = """
[superlink]
default = "here"
[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""
APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "federated"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "tersor"
[tool.flwr.app.components]
serverapp = "tersor.bench.federated_app:server"
clientapp = "tersor.bench.federated_app:client"
[tool.flwr.app.config]
"""


class Link:
    """Processes from ``open`` to ``close``, with logs in ``folder``."""

    def __init__(self, folder: pathlib.Path, clients: int) -> None:
        self._folder, self._clients = folder, clients
        path = f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}"  # of other programs
        self._environment = os.environ | ENV | {"FLWR_HOME": str(folder / "home"), "PATH": path}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._old_handler: Any = signal.getsignal(signal.SIGTERM)

    def open(self) -> None:
        """Starts the processes. Raises BenchmarkError if Flower does not start. ``close`` ends the
        started processes in both cases. SIGTERM becomes SystemExit to let ``close`` run."""
        is_missing = not (PROGRAMS / "flower-superlink").exists()
        fail_if(is_missing, f"no flower-superlink in {PROGRAMS}: pip install 'flwr>=1.30'")
        self._old_handler = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        port = _free_port()
        (self._folder / "home").mkdir()
        settings = self._folder / "home" / "config.toml"
        settings.write_text(SETTINGS.format(port=port), encoding="utf-8")
        self._start(f"flower-superlink --disable-runtime-dependency-installation --port {port}")
        self._wait_for(port)
        for partition in range(self._clients):
            own = f"--node-config partition-id={partition} --port {_free_port()}"
            self._start(f"flower-supernode --superlink 127.0.0.1:{port} {own}")

    def close(self) -> None:
        """Ends the processes and their children."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
        signal.signal(signal.SIGTERM, self._old_handler)

    def run(self, config: Mapping[str, Any], timeout: float) -> None:
        """Runs the app to the end. Raises BenchmarkError if the app wrote no result."""
        app, late = self._folder / "app", ""
        app.mkdir(exist_ok=True)
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in config.items()]  # as in TOML
        (app / "pyproject.toml").write_text(APP + "".join(lines), encoding="utf-8")
        process = self._popen(["flwr", "run", str(app), "here", "--stream"], "run.log")
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            late = f" after {timeout:g} s (--timeout)"
        if not pathlib.Path(config["results"], "server.json").exists():
            log = self._log_tail("run.log")
            raise BenchmarkError(f"Flower's run has no result{late}; its log ends\n{log}")

    def _start(self, command: str) -> None:
        program, *arguments = command.split()
        log = f"{program}-{len(self._processes)}.log"
        self._processes.append(self._popen([program, "--insecure", *arguments], log))

    def _popen(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        command[0] = str(PROGRAMS / command[0])
        with (self._folder / log).open("wb") as output:
            return subprocess.Popen(command, env=self._environment, stdout=output, stderr=output)

    def _wait_for(self, port: int) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and self._processes[0].poll() is None:
            try:
                return socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.2)
        log = self._log_tail("flower-superlink-0.log")
        raise BenchmarkError(f"Flower's SuperLink does not listen; its log ends\n{log}")

    def _log_tail(self, log: str) -> str:
        lines = (self._folder / log).read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-15:])


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
