"""Weight deltas on a device: the bits of the CPU, errors before a write, and undo."""

from __future__ import annotations

from typing import Any

import cuda_arrays
import numpy
import pytest
from cuda_arrays import DeviceArray
from delta_models import stepped, weights

import tersor
from tersor import _core, delta
from tersor.delta import _memory

pytestmark = cuda_arrays.on_cuda


def on_device(values: dict[str, Any]) -> list[DeviceArray]:
    return [DeviceArray.of(value.reshape(-1).view(numpy.uint8)) for value in values.values()]


def prepared(base: dict[str, Any], made: delta.Delta, arrays: list[Any]) -> Any:
    return _core.PreparedDelta(_memory.described(base), arrays, made.data, False, 1)


def bytes_of(values: dict[str, Any]) -> list[bytes]:
    return [value.tobytes() for value in values.values()]


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_a_delta_is_written_and_undone_on_the_device(classes: int) -> None:
    base, new = weights(), stepped(weights())
    arrays = on_device(base)
    change = prepared(base, delta.encode(base, new, classes), arrays)
    assert [array.tobytes() for array in arrays] == bytes_of(base)
    change.write(arrays, 1)
    assert [array.tobytes() for array in arrays] == bytes_of(new)
    change.undo(arrays)
    assert [array.tobytes() for array in arrays] == bytes_of(base)
    assert change.bytes > 0


def test_base_mismatch_raises_and_changes_nothing() -> None:
    base, new = weights(), stepped(weights())
    other = stepped(base, 2)
    arrays = on_device(other)
    with pytest.raises(tersor.delta.BaseMismatchError, match=r'tensor "layer\.weight"'):
        prepared(base, delta.encode(base, new), arrays)
    assert [array.tobytes() for array in arrays] == bytes_of(other)


def test_mixed_host_and_device_arrays_are_rejected() -> None:
    base, new = weights(), stepped(weights())
    arrays: list[Any] = on_device(base)
    arrays[1] = base["layer.bias"].view(numpy.uint8)
    with pytest.raises(tersor.InvalidArgumentError, match="on one device"):
        prepared(base, delta.encode(base, new), arrays)
