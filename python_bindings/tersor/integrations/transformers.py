"""Hugging Face's ``Trainer`` with compressed gradients.

In place of a line of your own after the model was wrapped::

    trainer = Trainer(model, args, callbacks=[TersorCallback(codec="int8")], …)

Its methods are the trainer's to call.
"""

from __future__ import annotations

import inspect
import pathlib
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

try:
    import transformers
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    needed = "tersor.integrations.transformers needs it: pip install 'transformers[torch]'"
    raise ModuleNotFoundError(needed, name="transformers") from error

import tersor.torch
from tersor._core import InvalidArgumentError
from tersor.torch._src.checkpoint.residuals import Mode, check_mode

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tersor.reducer import ReducerOptions

if transformers.__version__.split(".")[0] != "5":
    warnings.warn(
        f"transformers {transformers.__version__}: tested with version 5 only", stacklevel=2
    )

_FILE = "tersor.pt"
_ABSENT = "has no file"


class TersorCallback(transformers.TrainerCallback):
    """Compresses the gradients of a ``Trainer`` that runs over several ranks, by DDP or FSDP2.

    Residuals are in its checkpoints, ``handle.scalars()`` in its logs beside each loss.
    """

    def __init__(
        self,
        *,
        state: Mode = "exact",
        start_at_zero: bool = False,
        **options: Unpack[ReducerOptions],
    ) -> None:
        """``options``: as of ``tersor.torch.compress``; the trainer's gradient scaler is found.

        ``state``: ``"exact"`` writes a file a rank into each checkpoint, from which as many ranks
        go on bit for bit; ``"portable"`` one for any number of ranks. ``start_at_zero``: residuals
        do after a checkpoint without such files, which is an error else.

        Raises InvalidArgumentError for another ``state``. ``train()`` raises it before the first
        step, on all ranks, where the model cannot be compressed or has a communication hook
        already, and where the checkpoint has not the files, or they are of another codec, model or
        (``"exact"``) number of ranks.
        """
        self._mode = check_mode(state)
        self._start_at_zero = start_at_zero
        self._options: dict[str, Any] = dict(options)
        self._model: nn.Module | None = None
        #: What ``tersor.torch.compress`` returned; None before ``train()``, and in one process.
        self.handle: tersor.torch.HookState | tersor.torch.ShardedHandle | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Compresses what the trainer wrapped, and brings back what the checkpoint holds."""
        trainer, checkpoint = _training()
        others = [one for one in trainer.callback_handler.callbacks if one is not self]
        trainer.callback_handler.callbacks[:] = [self, *others]  # before those that write logs
        model = trainer.model_wrapped
        if args.world_size == 1 and not isinstance(model, nn.DataParallel):
            warnings.warn(
                "TersorCallback has no effect: one process sends no gradients", stacklevel=2
            )
            return
        if model is not self._model:
            options = {"scaler": trainer.accelerator.scaler, **self._options}
            self.handle, self._model = tersor.torch.compress(model, **options), model
        if checkpoint is not None:
            self._load(pathlib.Path(checkpoint))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Puts its scalars beside the loss, for all who write logs, and into the history."""
        if self.handle is not None and "loss" in (logs or {}):
            scalars = self.handle.scalars()
            logs.update(scalars)
            state.log_history[-1].update(scalars)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Writes this rank's file into the checkpoint that the trainer wrote."""
        if self.handle is None or args.save_only_model or state.is_hyper_param_search:
            return  # a trial has a folder of its own
        folder = pathlib.Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        saved = self.handle.state_dict(self._mode)
        if self._mode == "exact" or args.should_save:
            _write(saved, folder / (_file_of_rank() if self._mode == "exact" else _FILE))

    def _load(self, checkpoint: pathlib.Path) -> None:
        """Of all ranks none goes on where one has no file: it would wait for the other."""
        assert self.handle is not None
        saved, complaint = _read(checkpoint)
        complaints = [complaint] * dist.get_world_size()
        dist.all_gather_object(complaints, complaint)
        absent = all(_ABSENT in one for one in complaints)
        if any(complaints) and not (absent and self._start_at_zero):
            raise InvalidArgumentError(
                f"{next(filter(None, complaints))}; resume from a checkpoint that TersorCallback "
                "saved completely, with as many ranks, or, if there are no files at all, start "
                "residuals at zero: TersorCallback(start_at_zero=True)"
            )
        try:
            self.handle.load_state_dict(saved)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{checkpoint}: {error}") from error


def _training() -> tuple[Any, str | None]:
    """The calling trainer and the checkpoint that it resumes from.

    Read from the trainer's stack frame: transformers (5.24) passes a callback neither of them, and
    stores the checkpoint's folder nowhere.
    """
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        trainer, key = frame.f_locals.get("self"), "resume_from_checkpoint"
        if isinstance(trainer, transformers.Trainer) and key in frame.f_locals:
            found = frame.f_locals[key]
            return trainer, get_last_checkpoint(trainer.args.output_dir) if found is True else found
    raise InvalidArgumentError(
        f"no Trainer of transformers {transformers.__version__} calls this TersorCallback; call "
        "tersor.torch.compress on the wrapped model instead"
    )


def _file_of_rank() -> str:
    return f"tersor_rank{dist.get_rank()}.pt"


def _write(saved: dict[str, Any], file: pathlib.Path) -> None:
    """All of it or nothing, whenever the process is killed."""
    file.parent.mkdir(parents=True, exist_ok=True)  # another rank's trainer may not be there yet
    part = file.with_suffix(f".part{dist.get_rank()}")
    torch.save(saved, part)
    part.replace(file)


def _read(checkpoint: pathlib.Path) -> tuple[dict[str, Any] | None, str]:
    """What this rank is to load, or what is wrong with it."""
    for name in (_file_of_rank(), _FILE):
        if (file := checkpoint / name).exists():
            try:
                return torch.load(file, map_location="cpu", weights_only=True), ""
            except Exception as error:  # the other ranks are told
                return None, f"{file} cannot be read ({type(error).__name__})"
    return None, f"{checkpoint} {_ABSENT} of rank {dist.get_rank()}, {_file_of_rank()} or {_FILE}"
