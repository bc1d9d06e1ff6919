"""The command line of ``python -m tersor.bench``."""

import argparse
import importlib.util
import sys

from tersor.bench import codec_command
from tersor.bench.errors import BenchmarkError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tersor.bench", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    codec_command.add_to(commands)
    if importlib.util.find_spec("torch") is not None:
        from tersor.bench import backward_command, train_command

        train_command.add_to(commands)
        backward_command.add_to(commands)
    else:
        parser.epilog = "train and backward need PyTorch: pip install 'tersor[torch]'"
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns the exit status: 2 after a wrong option or missing data."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except BenchmarkError as error:
        print(f"tersor.bench: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
