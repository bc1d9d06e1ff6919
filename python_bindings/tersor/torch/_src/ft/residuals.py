"""The residuals of torchft's process group, between steps and between quorums.

The process group knows no names, so the position in the step identifies a tensor. torchft may
discard a step, and every quorum changes the ranks that reduce. Therefore each position also keeps
the residual from before the step. Before the exchange with another quorum, a rank adds its owner
residual to its sender residual.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tersor import _core
from tersor._options import fill
from tersor.torch._src.checkpoint import residuals as checkpoint
from tersor.torch._src.checkpoint.residuals import checked_finite, checked_int


class World(NamedTuple):
    """The ranks of a quorum."""

    rank: int
    ranks: int
    quorum: int  #: number of the quorum, counted by this replica


class _State(NamedTuple):
    sender: Tensor  # f32, one value per value of the tensor
    owner: Tensor  # f32, one per value that this rank reduces
    words: Tensor  # _core.FRESH_STATE_WORDS, as int64

    def copy_(self, other: _State) -> None:
        for own, one in zip(self, other, strict=True):
            own.copy_(one)

    def clone(self) -> _State:
        return _State(*(one.clone() for one in self))


class Position:
    """A position in the step. Only the thread of the group's calls uses the tensors."""

    def __init__(self, like: Tensor, options: dict[str, Any]) -> None:
        self.count, self.device = like.numel(), like.device
        self.step = -1  #: the last step that used the position
        self.discarded = False  #: True if discarded: the next use restores the residual
        self._options = fill(_core.CallOptions(), options)
        self._world: World | None = None
        self._current = self._new_state(checkpoint.zeros(self.count))
        self._previous: _State | None = None
        self._state: _core.FeedbackState | None = None

    def matches(self, like: Tensor) -> bool:
        return (self.count, self.device) == (like.numel(), like.device)

    def state(self, world: World, discarded: bool) -> _core.FeedbackState:
        """Returns the state for the next call; ``discarded``: the last call's step was discarded.
        Each quorum counts steps from 0, because a restarted replica has no earlier steps."""
        if discarded and self._previous is not None:
            self._current.copy_(self._previous)
        if self._state is None or self._world != world:
            self._current, self._world = self._new_state(self.total(), world), world
            self._previous = self._current.clone()
            now = self._current
            self._state = _core.FeedbackState(now.sender, now.words, now.owner)
        elif self._previous is not None:
            self._previous.copy_(self._current)
        return self._state

    def total(self, *, discarded: bool = False) -> Tensor:
        """Returns the whole residual of this rank on the host. Waits for a device. ``discarded``:
        the last call's step was discarded."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        discarded |= self.discarded
        now = self._previous if discarded and self._previous is not None else self._current
        sender, owner = now.sender.cpu().clone(), now.owner.cpu()
        if self._world is not None:
            _core.fold_owner(owner, sender, *self._world[:2], self._options)
        return sender

    def reset(self, sender: Tensor) -> None:
        """Sets the residual, for any next quorum."""
        self._current, self._previous, self._world = self._new_state(sender), None, None
        self.discarded, self._state = False, None

    def _new_state(self, sender: Tensor, world: World | None = None) -> _State:
        count = _core.owned_count(self.count, *world[:2], self._options) if world is not None else 0
        words = torch.frombuffer(bytearray(_core.FRESH_STATE_WORDS), dtype=torch.int64)
        return _State(*(one.to(self.device) for one in (sender, checkpoint.zeros(count), words)))


class Positions:
    """The positions of all steps. Each fragment of streaming DiLoCo has its own positions."""

    def __init__(self, options: dict[str, Any], fragments: int, step_of: Callable[[], int]) -> None:
        """``step_of`` returns the current step; a discarded step does not increase the number."""
        self._options, self._fragments, self._step_of = options, fragments, step_of
        self._positions: dict[tuple[int, int], Position] = {}
        self._loaded: dict[tuple[int, int], Tensor] = {}
        self._step, self._attempts, self._next, self._open = -1, 0, 0, False
        self._calls: dict[int, int] = {}  # in the first step of each fragment

    def take(self, like: Tensor, world: World, reduction: str) -> Callable[[], _core.FeedbackState]:
        """Takes the next position of the step. Call the result once, after all earlier calls."""
        if not self._open:
            self._begin_step()
        key = self._step % self._fragments, self._next
        self._next += 1
        position = self._position(key, like, {**self._options, "reduction": reduction})
        discarded, position.discarded, position.step = position.discarded, False, self._attempts
        return lambda: position.state(world, discarded)

    def _begin_step(self) -> None:
        step = self._step_of()
        if step == self._step:  # the last step was discarded
            for position in self._positions.values():
                position.discarded |= position.step == self._attempts
        elif self._positions:
            first = self._calls.setdefault(self._step % self._fragments, self._next)
            if self._next != first:
                warnings.warn(
                    f"a step had {self._next} calls, and the first step {first}: the tensors after "
                    "a missing call get residuals of other tensors. Make the same calls in each "
                    "step; for streaming DiLoCo call follow(manager, fragments=...)",
                    stacklevel=5,
                )
        self._step, self._next, self._open = step, 0, True
        self._attempts += 1

    def end_step(self) -> None:
        """Ends the step. The next call belongs to the next step or to a repetition."""
        self._open = False

    def _position(self, key: tuple[int, int], like: Tensor, options: dict[str, Any]) -> Position:
        position = self._positions.get(key)
        if position is None or not position.matches(like):
            loaded = self._loaded.pop(key, None)
            before = None if position is None else f"{position.count} values on {position.device}"
            if loaded is not None and len(loaded) != like.numel():
                before = f"{len(loaded)} values in the loaded state"
            if before is not None:
                warnings.warn(
                    f"tensor {key[1]} of a step had {before} and has "
                    f"{like.numel()} on {like.device}: its residual starts at zero. Make the same "
                    "calls in each step; for streaming DiLoCo call follow(manager, fragments=...)",
                    stacklevel=5,
                )
            position = self._positions[key] = Position(like, options)
            if loaded is not None and len(loaded) == position.count:
                position.reset(loaded)
        return position

    def clear(self) -> None:
        """Sets all residuals to zero."""
        self._positions.clear()
        self._loaded.clear()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the residuals by fragment and position. Call between steps."""
        discarded = bool(self._positions) and self._step_of() == self._step
        last = self._attempts if discarded else None
        now = {key: one.total(discarded=one.step == last) for key, one in self._positions.items()}
        return {f"{one[0]}.{one[1]}": tensor for one, tensor in (self._loaded | now).items()}

    @checkpoint.reject_damage()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads residuals. If the state is damaged or not finite, raises InvalidArgumentError and
        changes nothing."""
        loaded = {}
        for key, tensor in checkpoint.as_mapping(state).items():
            fragment, position = map(int, key.split("."))
            residual = checked_finite(tensor, f"residual of tensor {key}").flatten().float().cpu()
            loaded[checked_int(fragment, "fragment"), checked_int(position, "place")] = residual
        self.clear()
        self._loaded = loaded
