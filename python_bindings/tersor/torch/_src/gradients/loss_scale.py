"""The loss scale of a gradient scaler, which is the residuals' unit, and skipped steps."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from tersor._options import described
from tersor.torch import _compat

Parameters = Callable[[], Mapping[str, Tensor]]  # by their names in a reducer


class Scaler(Protocol):
    """The part of ``torch.amp.GradScaler`` that every scaler needs."""

    def get_scale(self) -> float:
        """The scale of the next loss."""


class Residuals(Protocol):
    """The residuals of one reducer, or of all reducers of a sharded model."""

    def scale_residuals(self, factor: float, /) -> None:
        """Multiplies all residuals."""

    def discard_step(self, names: Sequence[str] | None = None, /) -> None:
        """Restores the residuals from before the last step."""

    def accept_steps(self, names: Sequence[str] | None = None, /) -> None:
        """Makes the steps until now final."""


class LossScale:
    """Keeps residuals in the units of a scaler, and discards steps skipped by the scaler.

    ``GradScaler`` decides per optimizer: a gradient with NaN or infinity skips the step of all
    parameters of the optimizer. Ranks decide alike because averaged gradients are equal. The
    gradients of a skipped step were already sent. The residuals' share in these gradients is lost
    unless the reducer is transactional. All passes between two calls of ``update`` belong to one
    step.
    """

    def __init__(self, scaler: Scaler | None, transactional: bool) -> None:
        if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
            raise TypeError(f"scaler must be the training's GradScaler, not {described(scaler)}")
        if transactional and not isinstance(scaler, torch.amp.GradScaler | None):
            warnings.warn(
                f"transactional=True: only a torch.amp.GradScaler reports which optimizers it "
                f"skips. After a step that this {type(scaler).__name__} skips, call discard_step()",
                stacklevel=4,
            )
        self.scaler = scaler
        self.skipped_steps = 0
        self._transactional = transactional
        self._scale: float | None = None
        self._results: _Results | None = None  # of the iteration of the last exchange
        self._decided: set[Optimizer] = set()
        record_results(scaler)

    def begin_step(self, residuals: Residuals, parameters: Parameters) -> None:
        """Discards skipped steps and converts residuals to the present scale, before a step."""
        if self.scaler is None:
            return
        self.discard_skipped(residuals, parameters)
        scaler, recorder = self._recorder()
        results = None if recorder is None else recorder.results
        if results is not self._results:
            self._results, self._decided = results, set(results or ())
            if self._transactional:
                residuals.accept_steps()
        before = self._scale
        self._scale = scale = recorder.scale(scaler) if recorder else self.scaler.get_scale()
        if before and scale != before:
            residuals.scale_residuals(scale / before)

    def discard_skipped(self, residuals: Residuals, parameters: Parameters) -> None:
        """Discards the residuals of skipped steps, if the scaler has decided."""
        results, (_, recorder) = self._results, self._recorder()
        if results is None or recorder is None:
            return
        is_over = results is not recorder.results
        if is_over:
            self._results = None
        found = {one: float(result.wait()) > 0 for one, result in results.items()}
        new = found.keys() - self._decided
        if not any(found[one] for one in new) and (is_over or not new):
            return
        names = {one: name for name, one in parameters().items()}
        trained = {
            one: {names[p] for group in one.param_groups for p in group["params"] if p in names}
            for one in found
        }
        if is_over:  # an optimizer of other tensors than the model's may have copies of them
            unknown = set(names.values()).difference(*trained.values())
            trained = {one: own or unknown for one, own in trained.items()}
        stepped = {name for one in new if not found[one] for name in trained[one]}
        skipped = {name for one in new if found[one] for name in trained[one]} - stepped
        self._decided |= {one for one in new if trained[one]}
        self.skipped_steps += bool(skipped)
        if self._transactional and skipped:
            residuals.discard_step(list(skipped))
        if self._transactional and not is_over:
            residuals.accept_steps(list(stepped))

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale of the residuals, and the number of skipped steps."""
        if self.scaler is None:
            return {}
        return {"loss_scale": self._scale, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: Mapping[str, Any], residuals: Residuals) -> None:
        """Call after loading ``residuals``. The next step converts residuals to the new scale."""
        self._results = None
        self._scale = state.get("loss_scale", 1.0 if state else None)  # 1: saved without a scaler
        if self.scaler is not None:
            self.skipped_steps = state.get("skipped_steps", 0)
        elif self._scale:  # gradients are not scaled any more
            residuals.scale_residuals(1 / self._scale)

    def _recorder(self) -> tuple[Any, _Recorder | None]:
        """The scaler itself, and its recorder."""
        scaler = getattr(self.scaler, "program_scaler", self.scaler)
        return scaler, None if scaler is None else _RECORDERS.get(scaler)


def record_results(scaler: object) -> None:
    """Records the results of an enabled ``GradScaler`` from now on."""
    if not isinstance(scaler, torch.amp.GradScaler):
        return
    if scaler.is_enabled() and scaler not in _RECORDERS:
        _RECORDERS[scaler] = _Recorder(scaler)


class HostCopy:
    """A copy of values on the CPU, in the order of a device's current stream."""

    def __init__(self, values: Tensor) -> None:
        self._source, self._version = values, _compat.version(values)
        pinned = values.is_cuda
        self._values = torch.empty(
            values.shape, dtype=values.dtype, pin_memory=pinned, device="cpu"
        )
        self._values.copy_(values, non_blocking=True)
        self._done = torch.cuda.current_stream(values.device).record_event() if pinned else None

    def matches(self, values: Tensor | None) -> bool:
        """Whether this tensor still has the same values."""
        return values is self._source and _compat.version(values) == self._version

    def wait(self) -> Tensor:
        """Waits for the copy and earlier work of the stream, not for later work."""
        if self._done is not None:
            self._done.synchronize()
        return self._values


_Results = dict[Optimizer, HostCopy]


class _Recorder:
    """Records the results of a scaler."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        #: Per optimizer: 0, or above 0 after NaN or infinity. Each ``update`` starts a new
        #: dictionary.
        self.results: _Results = {}
        self._scale: HostCopy | None = None
        for name in ("unscale_", "step", "update"):
            callback = self._record_update if name == "update" else self._record_infinities
            setattr(scaler, name, _RecordedMethod(scaler, name, callback))

    def scale(self, scaler: Any) -> float:
        """``get_scale``, which on a GPU waits for the last ``update`` only."""
        copied = self._scale
        if copied is None or not copied.matches(_compat.scale_tensor(scaler)):
            return float(scaler.get_scale())
        return float(copied.wait())

    def _record_infinities(self, scaler: Any, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        found = _compat.found_infinities(scaler, optimizer)
        if found and optimizer not in self.results:  # update() adds others to these tensors
            device = _compat.scale_tensor(scaler).device
            total = sum(one.to(device, non_blocking=True) for one in found)
            self.results[optimizer] = HostCopy(cast(Tensor, total))

    def _record_update(self, scaler: Any, *_: Any, **__: Any) -> None:
        self.results = {}
        self._scale = HostCopy(_compat.scale_tensor(scaler))


class _RecordedMethod:
    """A method of a scaler, in its place. Calls ``then`` afterwards."""

    def __init__(self, scaler: Any, name: str, callback: Callable[..., None]) -> None:
        self._scaler, self._name = scaler, name
        self._method, self._callback = getattr(scaler, name), callback

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = self._method(*arguments, **options)
        self._callback(self._scaler, *arguments, **options)
        return result

    def __reduce__(self) -> Any:  # a copied or loaded scaler has the method itself
        return getattr, (self._scaler, self._name)


_RECORDERS = weakref.WeakKeyDictionary[Any, _Recorder]()
