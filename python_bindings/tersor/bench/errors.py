"""What the user of the benchmark must mend."""


class BenchmarkError(Exception):
    """A wrong option, missing data or a wrong result; the message is one line."""


def check_error(name: str, what: str, relative_error: float) -> None:
    """Raises BenchmarkError where zeros would be as near: nothing is timed that is wrong."""
    if not relative_error < 1.0:
        raise BenchmarkError(f"{name}: the relative error of {what} is {relative_error:.3g}")
