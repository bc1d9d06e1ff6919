"""Runs functions of tests on several processes, each a rank of a gloo group.

    def body(rank, ranks, text):            # a function of a test module, not nested in another
        ...                                 # torch.distributed is initialised here
        return text * rank

    ranks.run(body, 3, "ab") == ["", "ab", "abab"]

    @ranks.on(3)                            # a test on three ranks
    def test_each_rank_is_one_of_three(rank, ranks): ...

The import of PyTorch takes seconds. Therefore processes are forked from a process with PyTorch, and
used again. `fresh=True` asks for new processes, which in `outcomes` end like any interpreter.
After the deadline, late processes are killed. Dead, late and failed processes are replaced.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import gc
import importlib
import inspect
import multiprocessing
import multiprocessing.util
import os
import pathlib
import pickle
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

# For hanging tests: above the time of slow processors and disks, below Tersor's own 300 s.
DEADLINE_SECONDS = 180.0
# PyTorch 2.15's error if gloo does not connect a group, about once per hundred groups.
UNCONNECTED = "Gloo connectFullMesh failed"
# Optimizers import torch._dynamo at the first call.
PRELOADED = ["pytest", "torch", "torch._dynamo", "torch.distributed.fsdp", "tersor.torch"]


@dataclasses.dataclass
class Outcome:
    """The outcome of a function on a rank."""

    value: Any = None
    error: BaseException | None = None  #: what it raised; as RuntimeError where it has no pickle
    traceback: str = ""
    exit_code: int | None = None  #: of the process, where that ended; negative: by a signal
    output: str = ""  #: what the process wrote to its standard output and error
    finished: bool = False  #: the function returned or raised, before the deadline
    reusable: bool = True  #: PyTorch's count of groups, in its stores' keys, is as it was before

    @property
    def unconnected(self) -> bool:
        """Gloo did not connect the ranks of a group."""
        return UNCONNECTED in self.traceback


@dataclasses.dataclass
class _Task:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    rank: int
    ranks: int
    meeting: str  # a file for the group's store; empty: the function makes its own group
    close: bool  # all transports and groups after the function


class _Process:
    """A process that runs tasks, forked from a process with the slow imports."""

    _context = multiprocessing.get_context("forkserver")
    _context.set_forkserver_preload(PRELOADED)

    def __init__(self, *, finalize: bool) -> None:
        ours, theirs = socket.socketpair()
        self.output = tempfile.NamedTemporaryFile()  # noqa: SIM115  # kept while the process lives
        with Connection(theirs.detach()) as connection:
            arguments = (connection, self.output.name, finalize)
            self.process = self._context.Process(target=_serve_forked, args=arguments)
            self.process.start()
        self.connection = Connection(ours.detach())
        self._read = 0

    def send(self, task: _Task) -> None:
        self.connection.send_bytes(pickle.dumps(task))

    def outcome(self) -> Outcome:
        try:
            found: Outcome = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            found = Outcome()  # the process died
        return found

    def end(self, until: float) -> int:
        """Waits for the end of the process, or kills the process at `until`. Returns the exit
        code."""
        self.connection.close()
        self.process.join(max(0.1, until - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode

    def new_output(self) -> str:
        self.output.seek(self._read)
        text = self.output.read()
        self._read += len(text)
        return text.decode(errors="replace")


def preload(*modules: str) -> None:
    """Adds modules to the imports of the first process. Call before the start of the first
    process."""
    PRELOADED.extend(modules)
    _Process._context.set_forkserver_preload(PRELOADED)


_idle: list[_Process] = []


def _take(count: int, *, fresh: bool, finalize: bool) -> list[_Process]:
    kept = [] if fresh else [_idle.pop() for _ in range(min(count, len(_idle)))]
    return kept + [_Process(finalize=finalize) for _ in range(count - len(kept))]


def _collect(processes: Sequence[_Process], until: float) -> list[Outcome]:
    outcomes = [Outcome() for _ in processes]
    waiting = {process.connection: index for index, process in enumerate(processes)}
    while waiting and time.monotonic() < until:
        for connection in wait(list(waiting), until - time.monotonic()):
            index = waiting.pop(connection)  # type: ignore[call-overload]
            outcomes[index] = processes[index].outcome()
            if outcomes[index].unconnected:
                return outcomes  # the others would wait for it
    return outcomes


def outcomes(
    function: Callable[..., Any],
    ranks: int,
    *arguments: Any,
    deadline: float = DEADLINE_SECONDS,
    fresh: bool = False,
    finalize: bool = True,
    group: bool = True,
    close: bool = True,
    attempts: int = 3,
) -> list[Outcome]:
    """Runs `function(rank, ranks, *arguments)` on several processes, and returns the outcomes.

    `finalize=False`: fresh processes end without the end of the interpreter, which takes a second.
    `group=False`: torch.distributed is not initialised. `close=False`: objects of the function stay
    open until the process ends. `attempts`: the number of attempts, if gloo does not connect the
    ranks.
    """
    until = time.monotonic() + deadline
    processes = _take(ranks, fresh=fresh, finalize=fresh and finalize)
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(pathlib.Path(folder) / "store") if group else ""
        for rank, process in enumerate(processes):
            process.send(_Task(function, arguments, rank, ranks, meeting, close))
        found = _collect(processes, until)
        unconnected = any(outcome.unconnected for outcome in found)
        for process, outcome in zip(processes, found, strict=True):
            if fresh or not outcome.finished or not outcome.reusable:
                hopeless = (unconnected or not fresh) and process.process.exitcode is None
                outcome.exit_code = process.end(time.monotonic() if hopeless else until)
            else:
                _idle.append(process)
            outcome.output = process.new_output()
    if unconnected and attempts > 1:
        return outcomes(
            function,
            ranks,
            *arguments,
            deadline=deadline,
            fresh=fresh,
            finalize=finalize,
            group=group,
            close=close,
            attempts=attempts - 1,
        )
    return found


def run(
    function: Callable[..., Any],
    ranks: int,
    *arguments: Any,
    deadline: float = DEADLINE_SECONDS,
    fresh: bool = False,
) -> list[Any]:
    """Returns the results of a function on all ranks. Raises for an error of a rank; see
    `outcomes`."""
    found = outcomes(function, ranks, *arguments, deadline=deadline, fresh=fresh, finalize=False)
    for rank, outcome in enumerate(found):
        if not outcome.finished:
            raise AssertionError(
                f"rank {rank} did not finish within {deadline} s "
                f"(exit code {outcome.exit_code})\n{_story(found)}"
            )
        if outcome.error is not None:
            raise AssertionError(f"rank {rank} raised\n{_story(found)}") from outcome.error
    return [outcome.value for outcome in found]


@dataclasses.dataclass
class _Body:
    """The function that `on` decorates, by name. In the module, the name belongs to the test."""

    module: str
    name: str

    def __call__(self, *arguments: Any) -> Any:
        return getattr(importlib.import_module(self.module), self.name).__wrapped__(*arguments)


def on(count: int | str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a test of a function of rank, ranks and the test's parameters, for `count` ranks. A
    string is the name of the parameter with the number of ranks."""

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        _, ranks, *own = inspect.signature(function).parameters.values()

        @functools.wraps(function)
        def test(**found: Any) -> None:
            body = _Body(function.__module__, function.__name__)
            number = found[count] if isinstance(count, str) else count
            run(body, number, *(found[one.name] for one in own))

        asked = [ranks.replace(name=count), *own] if isinstance(count, str) else own
        test.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
        return test

    return decorate


def _story(found: Sequence[Outcome]) -> str:
    return "\n".join(
        f"--- rank {rank}\n{outcome.traceback}{outcome.output}"
        for rank, outcome in enumerate(found)
    )


def environment(rank: int, ranks: int) -> None:
    """Sets torchrun's variables for frameworks, on a rank with a process group."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(number) for name, number in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")


def close() -> None:
    """Ends the kept processes."""
    while _idle:
        _idle.pop().end(time.monotonic())


atexit.register(close)  # before multiprocessing's own, which waits for them


# What follows runs in the processes.

# The process group of the last task. Callbacks of futures hold the group, as in PyTorch's PowerSGD.
# If a thread of gloo frees the last reference, PyTorch 2.15 joins this thread and aborts.
_groups: list[Any] = []


def _perform(task: _Task) -> Outcome:
    try:
        return Outcome(value=_call(task), finished=True)
    except BaseException as error:  # the test hears of it
        return Outcome(
            error=_portable(error),
            traceback="".join(traceback.format_exc()),
            finished=True,
            reusable=False,
        )


def _portable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _call(task: _Task) -> Any:
    if not task.meeting:
        return task.function(task.rank, task.ranks, *task.arguments)
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)  # equal weights on all ranks, after any earlier task of a process
    dist.init_process_group(
        "gloo",
        init_method=f"file://{task.meeting}",
        rank=task.rank,
        world_size=task.ranks,
        timeout=datetime.timedelta(seconds=DEADLINE_SECONDS),
    )
    if (renamed := sys.modules.get("tersor._renamed")) is not None:
        renamed._warned.clear()  # an earlier task of this process may have warned already
    try:
        return task.function(task.rank, task.ranks, *task.arguments)
    finally:
        if task.close and "tersor.torch._src.process_group.connections" in sys.modules:
            sys.modules["tersor.torch._src.process_group.connections"].close_all()
        if task.close and dist.is_initialized():
            _groups[:] = [dist.group.WORLD]
            dist.destroy_process_group()


def _serve(connection: Connection) -> None:
    while True:
        try:
            received = connection.recv_bytes()
        except EOFError:
            return
        try:
            outcome = _perform(pickle.loads(received))
        except Exception as error:  # no such function here
            outcome = Outcome(error=_portable(error), finished=True)
        connection.send_bytes(pickle.dumps(outcome))


def _serve_forked(connection: Connection, output: str, finalize: bool) -> None:
    if not finalize:
        gc.freeze()  # no collection visits the modules of the first process
    os.fsync = lambda _: None  # no checkpoint waits for the disk
    with open(output, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    _serve(connection)
    if finalize:
        connection.close()
        _end_interpreter()


def _end_interpreter() -> None:
    """Ends the interpreter like the last line of a program. multiprocessing would omit these
    steps."""
    ctypes.pythonapi.Py_Exit(0)
