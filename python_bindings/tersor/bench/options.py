"""Options that several commands have."""

import argparse
import math

import torch

from tersor.bench import hooks, records, split_hooks
from tersor.bench.errors import BenchmarkError, stateless_codec


def positive(text: str) -> int:
    """A whole number above 0, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: give 1 or more")
    return value


def positive_number(text: str) -> float:
    """A finite number above 0, for argparse."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0")
    return value


def stateless(text: str) -> str:
    """The spec of a codec without feedback, for argparse."""
    try:
        stateless_codec(text)
    except BenchmarkError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def add_hooks(parser: argparse.ArgumentParser, default: list[str]) -> None:
    """What is compared; each command checks the names. None given: None."""
    parser.add_argument(
        "--hooks",
        nargs="+",
        metavar="NAME",
        help=f"{hooks.SUMMARY}; default: {' '.join(default)}. Of activations, between experts or "
        f"stages: {split_hooks.SUMMARY}; default: {' '.join(split_hooks.DEFAULT)}",
    )


def add_world(parser: argparse.ArgumentParser) -> None:
    """Which processes there are."""
    parser.add_argument(
        "--ranks",
        type=positive,
        default=2,
        help="processes to start here (2); under torchrun what that started",
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where models lie; default: %(default)s",
    )
    parser.add_argument(
        "--backend",
        choices=["gloo", "nccl"],
        help="of torch.distributed; default: nccl where each rank here has a GPU of its own",
    )
    parser.add_argument(
        "--threads", type=positive, help="of each rank's arithmetic; default: cores / ranks here"
    )
    parser.add_argument(
        "--timeout", type=float, default=3600.0, metavar="SECONDS", help="then ranks are ended"
    )


def add_records(parser: argparse.ArgumentParser) -> None:
    """Where the records go, with a name for what shaped namespaces, or a cluster's network, are."""
    parser.add_argument(
        "--link",
        default="none",
        metavar="NAME",
        help="what the ranks are joined by, for the records",
    )
    records.add_option(parser)
