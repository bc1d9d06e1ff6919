"""`DiLoCo` in a training, as a hook's name has it: ``EVERY[,rate=R][,…]``."""

import functools
from typing import Any

import torch
from torch import nn

import tersor.torch
from tersor.bench.errors import BenchmarkError
from tersor.bench.timing import Mark, Span, mark_of
from tersor.torch._src.diloco.fragments import Timetable

SGD_DEFAULTS = {"rate": 0.7, "momentum": 0.9}  # the DiLoCo paper's, outside
_LARGE = 4096  # values, from which on parameters of two dimensions go by the codec by themselves
OPTIONS = r"(?:,(?:rate|momentum|residual|mix|muon)=(?:\d*\.)?\d+|,(?:fragments|delay)=\d+)*"
PATTERN = rf"0*[1-9]\d*{OPTIONS}"


def _told(options: str) -> tuple[Timetable, dict[str, float]]:
    """When what is exchanged, and what else is said. Raises InvalidArgumentError."""
    every, *given = options.split(",")
    told = {key: float(value) for key, value in (one.split("=") for one in given)}
    parts, delay = (int(told.pop(key, least)) for key, least in (("fragments", 1), ("delay", 0)))
    return Timetable(int(every), parts, delay), told


def check(options: str) -> None:
    """``options``: they match `PATTERN`. Raises BenchmarkError where they do not go together."""
    try:
        _told(options)
    except tersor.InvalidArgumentError as error:
        raise BenchmarkError(f"diloco={options}: {error}") from error


def _way(module: nn.Module, codec: str) -> dict[str, Any]:
    """``CODEC`` as options of ours; ``CODEC/SMALL``: what would travel as bf16 goes by SMALL."""
    codec, _, small = codec.partition("/")
    if not small:
        return {"codec": codec}
    named = [n for n, one in module.named_parameters() if one.dim() == 1 or one.numel() < _LARGE]
    return {"rules": [*((name, small) for name in named), ("*", codec)]}


class LocalTraining:
    """What is exchanged, how long that held a step up, and which weights are evaluated.

    Attributes:
        muon: momentum of a Muon that is to be inside, in place of AdamW; None: AdamW.
        span: of the last step what was not the inner optimizer's.
    """

    span: Span

    def __init__(self, module: nn.Module, options: str, codec: str) -> None:
        """``options``: they match `PATTERN`. Raises InvalidArgumentError where they do not go
        together."""
        table, told = _told(options)
        self.muon = told.pop("muon", None)
        sgd = {key: told.pop(key, default) for key, default in SGD_DEFAULTS.items()}
        self.outer = tersor.torch.DiLoCo(
            module,
            sync_every=table.sync_every,
            fragments=table.fragments,
            fragment_sync_delay=table.fragment_sync_delay,
            fragment_update_alpha=told.get("mix"),
            outer_optimizer=functools.partial(
                torch.optim.SGD,
                lr=sgd["rate"],
                momentum=sgd["momentum"],
                nesterov=sgd["momentum"] > 0,
            ),
            error_decay=told.get("residual", 1.0),
            **_way(module, codec),
        )
        self._named = dict(module.named_parameters())
        self._mark = mark_of(next(module.parameters()).device)
        self._aside: list[torch.Tensor] = []

    def exchange(self, *_: object) -> None:
        """After a step of the inner optimizer."""
        start: Mark = self._mark()
        self.outer.step()
        self.span = (start, self._mark())

    @torch.no_grad()
    def show_common(self) -> None:
        """Until `go_on` the model has what all ranks have in common."""
        self._aside = [one.clone() for one in self._named.values()]
        for name, common in self.outer.common_parameters().items():
            self._named[name].copy_(common)

    @torch.no_grad()
    def go_on(self) -> None:
        """Training continues, from where this rank was."""
        for one, kept in zip(self._named.values(), self._aside, strict=False):
            one.copy_(kept)
        self._aside = []
