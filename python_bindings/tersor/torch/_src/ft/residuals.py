"""What a process group of torchft keeps by error feedback, from step to step and quorum to quorum.

A group of torchft hears no names: a tensor is known by its place, the how manieth of its step. A
step may be void, its gradients thrown away, and who reduces what for others changes with the
quorum. So each place keeps what it owed before the step, too; and what a rank owes as an owner is
added to what it owes as a sender, before it exchanges with others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tersor import _core
from tersor._options import fill
from tersor.torch._src.checkpoint.residuals import (
    as_mapping,
    finite,
    number,
    refusing_damage,
    zeros,
)


class World(NamedTuple):
    """Who exchanges in a quorum."""

    rank: int
    ranks: int
    quorum: int  #: of one replica's, in the order of its life


class _Owed(NamedTuple):
    sender: Tensor  # f32, a value for each of the tensor
    owner: Tensor  # f32, of what this rank reduces for others
    words: Tensor  # _core.FRESH_STATE_WORDS, as int64

    def copy_(self, other: _Owed) -> None:
        for own, one in zip(self, other, strict=True):
            own.copy_(one)

    def clone(self) -> _Owed:
        return _Owed(*(one.clone() for one in self))


class Place:
    """One tensor of each step. Its tensors are the thread's that makes the group's calls."""

    def __init__(self, like: Tensor, options: dict[str, Any]) -> None:
        self.count, self.device = like.numel(), like.device
        self.step = -1  #: the last one in which it was used
        self.void = False  #: that step is: before the next use it goes back to what it owed then
        self._options = fill(_core.CallOptions(), options)
        self._world: World | None = None
        self._now = self._begun(zeros(self.count))
        self._before: _Owed | None = None
        self._state: _core.FeedbackState | None = None

    def are(self, like: Tensor) -> bool:
        return (self.count, self.device) == (like.numel(), like.device)

    def state(self, world: World, void: bool) -> _core.FeedbackState:
        """For the next call among these ranks; ``void``: the call before was of a void step.

        Steps, which frames tell, are counted from each quorum on: who came back had none before.
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

    def owed(self) -> Tensor:
        """All that this rank owes, on the host. Waits for a device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = self._before if self.void and self._before is not None else self._now
        sender, owner = now.sender.cpu().clone(), now.owner.cpu()
        if self._world is not None:
            _core.fold_owner(owner, sender, *self._world[:2], self._options)
        return sender

    def restart(self, sender: Tensor) -> None:
        """Owes this from now on, whoever exchanges next."""
        self._now, self._before, self._world = self._begun(sender), None, None
        self.void, self._state = False, None

    def _begun(self, sender: Tensor, world: World | None = None) -> _Owed:
        count = _core.owned_count(self.count, *world[:2], self._options) if world is not None else 0
        words = torch.frombuffer(bytearray(_core.FRESH_STATE_WORDS), dtype=torch.int64)
        return _Owed(*(one.to(self.device) for one in (sender, zeros(count), words)))


class Places:
    """Of all steps: ``fragments`` of them in turn, as of streaming DiLoCo, have tensors of their
    own.
    """

    def __init__(self, options: dict[str, Any], fragments: int, step_of: Callable[[], int]) -> None:
        """``step_of``: the number of the step under way, which a void one leaves as it was."""
        self._options, self._fragments, self._step_of = options, fragments, step_of
        self._places: dict[tuple[int, int], Place] = {}
        self._loaded: dict[tuple[int, int], Tensor] = {}
        self._step, self._tries, self._next, self._open = -1, 0, 0, False

    def take(self, like: Tensor, world: World, reduction: str) -> Callable[[], _core.FeedbackState]:
        """The next place of the step; what is returned is called once, behind calls before."""
        if not self._open:
            self._begin()
        key = self._step % self._fragments, self._next
        self._next += 1
        place = self._place(key, like, {**self._options, "reduction": reduction})
        void, place.void, place.step = place.void, False, self._tries
        return lambda: place.state(world, void)

    def _begin(self) -> None:
        step = self._step_of()
        if step == self._step:  # the one before was thrown away
            for place in self._places.values():
                place.void |= place.step == self._tries
        self._step, self._next, self._open = step, 0, True
        self._tries += 1

    def end_step(self) -> None:
        """What comes next is of another step, or of the same anew."""
        self._open = False

    def _place(self, key: tuple[int, int], like: Tensor, options: dict[str, Any]) -> Place:
        place = self._places.get(key)
        if place is None or not place.are(like):
            if place is not None:
                warnings.warn(
                    f"tensor {key[1]} of a step had {place.count} values on {place.device} and has "
                    f"{like.numel()} on {like.device}: its residual starts at zero. Make the same "
                    "calls in each step; for streaming DiLoCo call follow(manager, fragments=...)",
                    stacklevel=5,
                )
            place = self._places[key] = Place(like, options)
            loaded = self._loaded.pop(key, zeros(0))
            if len(loaded) == place.count:
                place.restart(loaded)
        return place

    def forget(self) -> None:
        """Nothing is owed any more."""
        self._places.clear()
        self._loaded.clear()

    def state_dict(self) -> dict[str, Tensor]:
        """By fragment and place what this rank owes. Between steps."""
        owed = {key: place.owed() for key, place in self._places.items()}
        return {f"{one[0]}.{one[1]}": tensor for one, tensor in (self._loaded | owed).items()}

    @refusing_damage()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Raises InvalidArgumentError, and changes nothing, if the state is damaged or not
        finite."""
        loaded = {}
        for key, tensor in as_mapping(state).items():
            fragment, place = map(int, key.split("."))
            residual = finite(tensor, f"residual of tensor {key}").flatten().float().cpu()
            loaded[number(fragment, "fragment"), number(place, "place")] = residual
        self.forget()
        self._loaded = loaded
