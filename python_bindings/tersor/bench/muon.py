"""PyTorch's Muon for hidden matrices beside its AdamW, to compare `CompressedMuon` with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tersor.torch._src.optim.muon import is_hidden


class MuonBesideAdamW(torch.optim.Optimizer):
    """Both of the same learning rates and decay; steps of Muon are as large as AdamW's."""

    def __init__(self, model: nn.Module, plain: torch.optim.AdamW, momentum: float) -> None:
        """``plain``: whose options it takes."""
        alike: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, one in model.named_parameters():
            alike[one.dim() == 2 and is_hidden(name, one)].append(one)
        rate, decay = plain.defaults["lr"], plain.defaults["weight_decay"]
        muon = torch.optim.Muon(alike[True], rate, decay, momentum, adjust_lr_fn="match_rms_adamw")
        betas, eps = plain.defaults["betas"], plain.defaults["eps"]
        self._both = (muon, torch.optim.AdamW(alike[False], rate, betas, eps, decay))
        super().__init__([group for one in self._both for group in one.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """No ``closure`` is called."""
        for one in self._both:
            one.step()  # type: ignore[no-untyped-call,unused-ignore]
