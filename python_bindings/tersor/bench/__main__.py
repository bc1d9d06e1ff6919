"""The command line of ``python -m tersor.bench``."""

import argparse
import importlib.util
import sys
import types

from tersor.bench import codec_command, gossip_command
from tersor.bench.errors import BenchmarkError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tersor.bench", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in _commands().items():
        text = command.__doc__ or ""
        own = commands.add_parser(name, help=text.splitlines()[0], description=text)
        command.add_options(own)
        own.set_defaults(run=command.run)
    if not _has("torch"):
        parser.epilog = "train, backward, step and goodput need PyTorch: pip install torch"
    return parser


def _has(package: str) -> bool:
    """Whether it is installed; a folder that happens to be called so is none."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def _commands() -> dict[str, types.ModuleType]:
    """Those that can run here; each has options, and a function that returns the exit status."""
    alone = {"codec": codec_command, "gossip": gossip_command}
    if _has("flwr"):
        from tersor.bench import federated_command, masks_command

        alone |= {"masks": masks_command, "federated": federated_command}
    if _has("ray"):
        from tersor.bench import ray_command

        alone["ray"] = ray_command
    if not _has("torch"):
        return alone
    from tersor.bench import backward_command, goodput_command, step_command, train_command

    return {
        **alone,
        "train": train_command,
        "backward": backward_command,
        "step": step_command,
        "goodput": goodput_command,
    }


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
