"""What the user of the benchmark must mend."""


class BenchmarkError(Exception):
    """A wrong option, missing data or a wrong result; the message is one line."""
