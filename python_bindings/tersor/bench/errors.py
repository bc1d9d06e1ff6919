"""Errors for the user of the benchmark to correct."""

import importlib
from typing import Any

import tersor


class BenchmarkError(Exception):
    """A wrong option, missing data or a wrong result. The message is one line."""


def fail_if(is_wrong: object, message: str) -> None:
    """Raises BenchmarkError with the message if ``is_wrong``."""
    if is_wrong:
        raise BenchmarkError(message)


def check_error(name: str, what: str, relative_error: float) -> None:
    """Raises BenchmarkError for an error of 1 (all zeros) or more. Wrong results are not timed."""
    message = f"{name}: the relative error of {what} is {relative_error:.3g}"
    fail_if(not relative_error < 1.0, message)


def stateless_codec(spec: str, threads: int = 1) -> tersor.Codec:
    """A codec without feedback. Raises BenchmarkError for an invalid spec, and for ``+ef``."""
    try:
        codec = tersor.Codec(spec, threads=threads)
    except tersor.InvalidArgumentError as error:
        raise BenchmarkError(str(error)) from error
    fail_if(codec.has_feedback, f"{spec}: give a codec without feedback, so without +ef")
    return codec


def import_package(module: str) -> Any:
    """Imports an optional package. Raises BenchmarkError with the package's name without one."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        raise BenchmarkError(f"needs {package}: pip install 'tersor[bench]'") from error
