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
from tersor.torch._src.checkpoint.residuals import finite, number


class World(NamedTuple):
    """The ranks of a quorum."""

    rank: int
    ranks: int
    quorum: int  #: number of the quorum, counted by this replica


class _Owed(NamedTuple):
    sender: Tensor  # f32, one value per value of the tensor
    owner: Tensor  # f32, one per value that this rank reduces
    words: Tensor  # _core.FRESH_STATE_WORDS, as int64

    def copy_(self, other: _Owed) -> None:
        for own, one in zip(self, other, strict=True):
            own.copy_(one)

    def clone(self) -> _Owed:
        return _Owed(*(one.clone() for one in self))


class Place:
    """A position in the step. Only the thread of the group's calls uses the tensors."""

    def __init__(self, like: Tensor, options: dict[str, Any]) -> None:
        self.count, self.device = like.numel(), like.device
        self.step = -1  #: the last step that used the position
        self.void = False  #: True if that step was discarded: the next use restores the residual
        self._options = fill(_core.CallOptions(), options)
        self._world: World | None = None
        self._now = self._begun(checkpoint.zeros(self.count))
        self._before: _Owed | None = None
        self._state: _core.FeedbackState | None = None

    def are(self, like: Tensor) -> bool:
        return (self.count, self.device) == (like.numel(), like.device)

    def state(self, world: World, void: bool) -> _core.FeedbackState:
        """Returns the state for the next call; ``void``: the last call's step was discarded.

        Each quorum counts steps from 0, because a restarted replica has no earlier steps.
        """
        if void and self._before is not None:
            self._now.copy_(self._before)
        if self._state is None or self._world != world:
            self._now, self._world = self._begun(self.owed(), world), world
            self._before = self._now.clone()
            now = self._now
            self._state = _core.FeedbackState(now.sender, now.words, now.owner)
        elif self._before is not None:
            self._before.copy_(self._now)
        return self._state

    def owed(self, *, void: bool = False) -> Tensor:
        """Returns the whole residual of this rank on the host. Waits for a device.

        ``void``: the last call's step was discarded.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        void |= self.void
        now = self._before if void and self._before is not None else self._now
        sender, owner = now.sender.cpu().clone(), now.owner.cpu()
        if self._world is not None:
            _core.fold_owner(owner, sender, *self._world[:2], self._options)
        return sender

    def restart(self, sender: Tensor) -> None:
        """Sets the residual, for any next quorum."""
        self._now, self._before, self._world = self._begun(sender), None, None
        self.void, self._state = False, None

    def _begun(self, sender: Tensor, world: World | None = None) -> _Owed:
        count = _core.owned_count(self.count, *world[:2], self._options) if world is not None else 0
        words = torch.frombuffer(bytearray(_core.FRESH_STATE_WORDS), dtype=torch.int64)
        return _Owed(*(one.to(self.device) for one in (sender, checkpoint.zeros(count), words)))


class Places:
    """The positions of all steps. Each fragment of streaming DiLoCo has its own positions."""

    def __init__(self, options: dict[str, Any], fragments: int, step_of: Callable[[], int]) -> None:
        """``step_of`` returns the current step; a discarded step does not increase the number."""
        self._options, self._fragments, self._step_of = options, fragments, step_of
        self._places: dict[tuple[int, int], Place] = {}
        self._loaded: dict[tuple[int, int], Tensor] = {}
        self._step, self._tries, self._next, self._open = -1, 0, 0, False
        self._calls: dict[int, int] = {}  # in the first step of each fragment

    def take(self, like: Tensor, world: World, reduction: str) -> Callable[[], _core.FeedbackState]:
        """Takes the next position of the step. Call the result once, after all earlier calls."""
        if not self._open:
            self._begin()
        key = self._step % self._fragments, self._next
        self._next += 1
        place = self._place(key, like, {**self._options, "reduction": reduction})
        void, place.void, place.step = place.void, False, self._tries
        return lambda: place.state(world, void)

    def _begin(self) -> None:
        step = self._step_of()
        if step == self._step:  # the last step was discarded
            for place in self._places.values():
                place.void |= place.step == self._tries
        elif self._places:
            first = self._calls.setdefault(self._step % self._fragments, self._next)
            if self._next != first:
                warnings.warn(
                    f"a step had {self._next} calls, and the first step {first}: the tensors after "
                    "a missing call get residuals of other tensors. Make the same calls in each "
                    "step; for streaming DiLoCo call follow(manager, fragments=...)",
                    stacklevel=5,
                )
        self._step, self._next, self._open = step, 0, True
        self._tries += 1

    def end_step(self) -> None:
        """Ends the step. The next call belongs to the next step or to a repetition."""
        self._open = False

    def _place(self, key: tuple[int, int], like: Tensor, options: dict[str, Any]) -> Place:
        place = self._places.get(key)
        if place is None or not place.are(like):
            loaded = self._loaded.pop(key, None)
            before = None if place is None else f"{place.count} values on {place.device}"
            if loaded is not None and len(loaded) != like.numel():
                before = f"{len(loaded)} values in the loaded state"
            if before is not None:
                warnings.warn(
                    f"tensor {key[1]} of a step had {before} and has "
                    f"{like.numel()} on {like.device}: its residual starts at zero. Make the same "
                    "calls in each step; for streaming DiLoCo call follow(manager, fragments=...)",
                    stacklevel=5,
                )
            place = self._places[key] = Place(like, options)
            if loaded is not None and len(loaded) == place.count:
                place.restart(loaded)
        return place

    def forget(self) -> None:
        """Sets all residuals to zero."""
        self._places.clear()
        self._loaded.clear()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the residuals by fragment and position. Call between steps."""
        void = bool(self._places) and self._step_of() == self._step
        last = self._tries if void else None
        owed = {key: one.owed(void=one.step == last) for key, one in self._places.items()}
        return {f"{one[0]}.{one[1]}": tensor for one, tensor in (self._loaded | owed).items()}

    @checkpoint.refusing_damage()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads residuals.

        Raises:
            InvalidArgumentError: The state is damaged or not finite. Nothing changed.
        """
        loaded = {}
        for key, tensor in checkpoint.as_mapping(state).items():
            fragment, place = map(int, key.split("."))
            residual = finite(tensor, f"residual of tensor {key}").flatten().float().cpu()
            loaded[number(fragment, "fragment"), number(place, "place")] = residual
        self.forget()
        self._loaded = loaded
