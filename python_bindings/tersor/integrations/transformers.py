"""Hugging Face's ``Trainer`` with compressed gradients."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tersor._options import needs

with needs(
    "transformers", "tersor.integrations.transformers needs it: pip install 'transformers[torch]'"
):
    import transformers
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

import tersor.torch
from tersor._core import InvalidArgumentError
from tersor._renamed import renamed_keywords
from tersor.reducer import AdvancedOptions, ResidualDtype, Rules, ShardedOptions
from tersor.torch import _compat
from tersor.torch._src.checkpoint.residuals import Mode, check_mode
from tersor.torch._src.parameters.selection import Unsupported

__all__ = ["TersorCallback"]
__dir__ = __all__.copy

if transformers.__version__.split(".")[0] != "5":
    _text = f"transformers {transformers.__version__}: tested with version 5 only"
    warnings.warn(_text, stacklevel=2)

_FILE = "tersor.pt"
_ABSENT = "has no file"


class TersorCallback(transformers.TrainerCallback):
    """Compresses the gradients of a ``Trainer`` with several ranks, by DDP or FSDP2.

    The Trainer's checkpoints then have the residuals, and the logs have ``handle.scalars()`` beside
    each loss. The Trainer calls all other methods. Further options are described in
    ``tersor.torch.compress``. The callback finds the Trainer's gradient scaler.

    ``train()`` raises InvalidArgumentError on all ranks before the first step in these cases: the
    model cannot be compressed or has a communication hook, or the checkpoint has no files or files
    of another codec, model, or (if exact) number of ranks.

    Args:
        codec: Spec of the codec, such as ``"int8"``, or ``"auto"``.
        mode: ``"exact"`` writes one file per rank into each checkpoint; the same number of ranks
            continues bit for bit. ``"portable"`` writes one file for any number of ranks.
        start_at_zero: True if residuals start at zero after a checkpoint without files, which is
            otherwise an error.
        rules: Tuples ``(pattern, codec)`` or ``(pattern, codec, step)``.
        weights_codec: FSDP2 only: codec of the all-gather of weights.
        timeout: Seconds after which a missing rank raises TransportError. Default: the timeout of
            the process group.
        residual_dtype: Dtype of the residuals, ``"f32"`` or ``"bf16"``.
        transactional: True if ``handle.discard_step`` can restore earlier residuals.
        unsupported: ``"warn"`` sends gradients that no codec takes uncompressed; ``"error"``
            raises.
        advanced: ``AdvancedOptions`` for DDP, ``ShardedOptions`` for FSDP2.
        **options: Deprecated: fields of ``advanced``.

    Raises:
        InvalidArgumentError: ``mode`` is unknown.

    Example::

        trainer = Trainer(model, args, callbacks=[TersorCallback("int8")])
        trainer.train()
    """

    @renamed_keywords(state="mode", weights="weights_codec")
    def __init__(
        self,
        codec: str = "bf16",
        *,
        mode: Mode = "exact",
        start_at_zero: bool = False,
        rules: Rules | None = None,
        weights_codec: str | None = None,
        timeout: float | None = None,
        residual_dtype: ResidualDtype = "f32",
        transactional: bool = False,
        unsupported: Unsupported = "warn",
        advanced: AdvancedOptions | ShardedOptions | None = None,
        **options: Any,
    ) -> None:
        self._mode = check_mode(mode)
        self._start_at_zero = start_at_zero
        self._options = {
            "codec": codec, "rules": None if rules is None else list(rules),
            "weights_codec": weights_codec, "timeout": timeout, "residual_dtype": residual_dtype,
            "transactional": transactional, "unsupported": unsupported, "advanced": advanced,
            **options,
        }  # fmt: skip
        self._model: nn.Module | None = None
        #: The result of ``tersor.torch.compress``; None before ``train()`` and in one process.
        self.handle: tersor.torch.HookState | tersor.torch.ShardedHandle | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Compresses the wrapped model, and loads the state in the checkpoint.

        Raises:
            InvalidArgumentError: As the class describes.
        """
        trainer, checkpoint = _calling_trainer()
        others = [one for one in trainer.callback_handler.callbacks if one is not self]
        trainer.callback_handler.callbacks[:] = [self, *others]  # before those that write logs
        model = trainer.model_wrapped
        if args.world_size == 1 and not isinstance(model, nn.DataParallel):
            text = "TersorCallback has no effect: one process sends no gradients"
            warnings.warn(text, stacklevel=2)
            return
        if model is not self._model:
            options: Any = {"scaler": trainer.accelerator.scaler, **self._options}
            self.handle, self._model = tersor.torch.compress(model, **options), model
        if checkpoint is not None:
            self._load(pathlib.Path(checkpoint))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Adds the scalars to the logs beside the loss, and to the history."""
        if self.handle is not None and "loss" in (logs or {}):
            scalars = self.handle.scalars()
            logs.update(scalars)
            state.log_history[-1].update(scalars)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Writes this rank's file into the Trainer's checkpoint."""
        if self.handle is None or args.save_only_model or state.is_hyper_param_search:
            return  # a trial has a folder of its own
        folder = pathlib.Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        saved = self.handle.state_dict(self._mode)
        if self._mode == "exact" or args.should_save:
            _write(saved, folder / (_file_of_rank() if self._mode == "exact" else _FILE))

    def _load(self, checkpoint: pathlib.Path) -> None:
        """Raises on all ranks if one rank has no file, because the other ranks would wait."""
        assert self.handle is not None
        saved, problem = _read(checkpoint)
        problems = [problem] * dist.get_world_size()
        dist.all_gather_object(problems, problem)
        absent = all(_ABSENT in one for one in problems)
        if any(problems) and not (absent and self._start_at_zero):
            raise InvalidArgumentError(
                f"{next(filter(None, problems))}; resume from a checkpoint that TersorCallback "
                "saved completely, with as many ranks, or, if there are no files at all, start "
                "residuals at zero: TersorCallback(start_at_zero=True)"
            )
        try:
            self.handle.load_state_dict(saved)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{checkpoint}: {error}") from error


def _calling_trainer() -> tuple[Any, str | None]:
    """The calling trainer and the checkpoint that it resumes from.

    Read from the trainer's stack frame. transformers (5.24) passes to callbacks the model without
    DDP, and neither the trainer nor the folder, which stays an argument of ``Trainer.train``.
    """
    key = "resume_from_checkpoint"
    found = _compat.caller_variables(
        lambda frame: (
            isinstance(frame.f_locals.get("self"), transformers.Trainer) and key in frame.f_locals
        )
    )
    if found:
        trainer, folder = found["self"], found[key]
        return trainer, get_last_checkpoint(trainer.args.output_dir) if folder is True else folder
    raise InvalidArgumentError(
        f"no Trainer of transformers {transformers.__version__} calls this TersorCallback; call "
        "tersor.torch.compress on the wrapped model instead"
    )


def _file_of_rank() -> str:
    return f"tersor_rank{dist.get_rank()}.pt"


def _write(saved: dict[str, Any], file: pathlib.Path) -> None:
    """Writes the whole file or nothing, even if the process is killed."""
    file.parent.mkdir(parents=True, exist_ok=True)  # rank 0 may not have made the folder yet
    part = file.with_suffix(f".part{dist.get_rank()}")
    torch.save(saved, part)
    part.replace(file)


def _read(checkpoint: pathlib.Path) -> tuple[dict[str, Any] | None, str]:
    """The state that this rank loads, or a complaint about the file."""
    for name in (_file_of_rank(), _FILE):
        if (file := checkpoint / name).exists():
            try:
                return torch.load(file, map_location="cpu", weights_only=True), ""
            except Exception as error:  # reported to the other ranks
                return None, f"{file} cannot be read ({type(error).__name__})"
    return None, f"{checkpoint} {_ABSENT} of rank {dist.get_rank()}, {_file_of_rank()} or {_FILE}"
