"""The command line of ``python -m tersor.bench``."""

import argparse
import importlib
import importlib.util
import pathlib
import sys

import tersor.bench
from tersor.bench.errors import BenchmarkError
from tersor.bench.records import add

# Each command with the required package. The module ``NAME_command`` has ``add_options(parser)``,
# and ``run(chosen)``, which may return an exit status.
_COMMANDS = {
    "codec": "numpy",
    "gossip": "numpy",
    "soak": "numpy",
    "corpus": "numpy",
    "masks": "flwr",
    "federated": "flwr",
    "ray": "ray",
    "train": "torch",
    "backward": "torch",
    "step": "torch",
    "delta": "torch",
    "goodput": "torch",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tersor.bench", description=tersor.bench.__doc__
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, package in _COMMANDS.items():
        if _has(package):
            command = importlib.import_module(f"tersor.bench.{name}_command")
            text = command.__doc__ or ""
            own = commands.add_parser(name, help=text.splitlines()[0], description=text)
            command.add_options(own)
            text = "write the records to this file"
            add(own, "json", None, text, pathlib.Path, metavar="FILE")
            own.set_defaults(run=command.run)
    if not _has("torch"):
        parser.epilog = (
            "train, backward, step, delta and goodput need PyTorch: pip install 'torch>=2.11'"
        )
    return parser


def _has(package: str) -> bool:
    """True if a package is installed. A folder of the package's name does not count."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns the exit status: 2 after a wrong option or missing data."""
    options = _parser().parse_args(arguments)
    try:
        status: int | None = options.run(options)
    except BenchmarkError as error:
        print(f"tersor.bench: {error}", file=sys.stderr)
        return 2
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
