"""What the user of the benchmark must mend."""

import tersor


class BenchmarkError(Exception):
    """A wrong option, missing data or a wrong result; the message is one line."""


def check_error(name: str, what: str, relative_error: float) -> None:
    """Raises BenchmarkError where zeros would be as near: nothing is timed that is wrong."""
    if not relative_error < 1.0:
        raise BenchmarkError(f"{name}: the relative error of {what} is {relative_error:.3g}")


def stateless_codec(spec: str, threads: int = 1) -> tersor.Codec:
    """A codec without feedback. Raises BenchmarkError where ``spec`` is none, or has ``+ef``."""
    try:
        codec = tersor.Codec(spec, threads=threads)
    except tersor.InvalidArgumentError as error:
        raise BenchmarkError(str(error)) from error
    if codec.has_feedback:
        raise BenchmarkError(f"{spec}: give a codec without feedback, so without +ef")
    return codec
