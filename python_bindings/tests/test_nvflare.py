"""Federated learning on NVFlare: from a client's filter to the server's, through its serializer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tersor

pytest.importorskip("nvflare")
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.fuel.utils import fobs

import tersor.federated.nvflare
from tersor.codec import text_hash


def context(client: str = "site-1") -> FLContext:
    made = FLContext()
    made.set_prop(ReservedKey.IDENTITY_NAME, client, private=True, sticky=False)
    return made


def update(seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "weight": draw.standard_normal((64, 96), np.float32),
        "bias": draw.standard_normal(96),
        "half": draw.standard_normal(1_000).astype(np.float16),
        "seen": np.array(3, np.int64),
    }


def send(
    client: tersor.federated.nvflare.Compress,
    data: dict[str, Any],
    kind: str = DataKind.WEIGHT_DIFF,
) -> bytes:
    message = DXO(kind, data, {"steps": 7}).to_shareable()
    numpy_decomposers.register()
    found: bytes = fobs.dumps(client.process(message, context()))
    return found


def receive(server: tersor.federated.nvflare.Decompress, sent: bytes) -> DXO:
    message: Shareable = fobs.loads(sent)
    at_server = context("server")
    at_server.set_peer_context(context())
    return from_shareable(server.process(message, at_server))


@pytest.mark.parametrize(("codec", "share", "error"), [("int8+ef", 0.3, 0.02), ("none", 1.1, 1e-3)])
def test_arrays_round_trip(codec: str, share: float, error: float) -> None:
    data = update()
    sent = send(tersor.federated.nvflare.Compress(codec), data)
    assert len(sent) < share * sum(one.size * 4 for one in data.values()) + 3_000
    found = receive(tersor.federated.nvflare.Decompress(codec), sent)
    assert found.get_meta_prop("steps") == 7
    assert found.get_meta_prop("tersor") is None
    for name, one in data.items():
        assert (found.data[name].dtype, found.data[name].shape) == (one.dtype, one.shape)
        assert np.abs(found.data[name].astype(float) - one).max() <= error


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_tensors_round_trip(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    values = torch.randn(64, 96, generator=torch.Generator().manual_seed(2))
    data = {
        "weight": values.to(getattr(torch, dtype)).T.requires_grad_(),
        "seen": torch.tensor(3),
        "bias": np.ones(96, np.float32),
    }
    message = DXO(DataKind.WEIGHT_DIFF, data).to_shareable()
    sent = tersor.federated.nvflare.Compress("int8").process(message, context())
    assert from_shareable(sent).data["weight"].nbytes < 0.3 * values.numel() * 4
    received = tersor.federated.nvflare.Decompress("int8").process(sent, context("server"))
    found = from_shareable(received).data
    assert isinstance(found["bias"], np.ndarray)
    assert found["seen"] == 3
    assert found["weight"].dtype == getattr(torch, dtype)
    assert found["weight"].shape == (96, 64)
    torch.testing.assert_close(found["weight"].float(), values.T, atol=0.04, rtol=0.01)


def test_feedback_sends_residuals_in_later_rounds() -> None:
    small = np.full(512, 1e-3, np.float32)
    small[::256] = 1
    client, server = (
        tersor.federated.nvflare.Compress("int8+ef"),
        tersor.federated.nvflare.Decompress("int8+ef"),
    )
    total = sum(receive(server, send(client, {"w": small})).data["w"] for _ in range(40))
    assert np.delete(total, [0, 256]).mean() == pytest.approx(0.04, abs=0.004)


def test_frames_may_be_shorter_than_the_maximum() -> None:
    data = {**update(), "zeros": np.zeros(1 << 20, np.float32)}
    sent = send(tersor.federated.nvflare.Compress("entropy"), data)
    assert len(sent) < (1 << 16) + 40_000
    found = receive(tersor.federated.nvflare.Decompress("entropy"), sent)
    assert np.array_equal(found.data["weight"], data["weight"])
    assert np.array_equal(found.data["zeros"], data["zeros"])


def test_weights_and_uncompressed_results_pass_unchanged() -> None:
    data = update()
    weights = send(tersor.federated.nvflare.Compress("int8"), data, DataKind.WEIGHTS)
    found = receive(tersor.federated.nvflare.Decompress("int8"), weights)
    assert np.array_equal(found.data["weight"], data["weight"])
    plain = fobs.dumps(DXO(DataKind.WEIGHT_DIFF, data).to_shareable())
    assert np.array_equal(
        receive(tersor.federated.nvflare.Decompress("int8"), plain).data["bias"], data["bias"]
    )


def test_invalid_codecs_and_updates_are_rejected() -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="int9"):
        tersor.federated.nvflare.Compress("int9")
    client, server = (
        tersor.federated.nvflare.Compress("int8+ef"),
        tersor.federated.nvflare.Decompress("int4"),
    )
    with pytest.raises(tersor.InvalidArgumentError, match="codec is int8"):
        receive(server, send(client, update()))
    broken = {**update(), "bias": np.array([np.nan])}
    before = {name: one.copy() for name, one in client._residuals.items()}
    with pytest.raises(tersor.InvalidArgumentError, match="bias: the update is not finite"):
        send(client, broken)
    assert all(np.array_equal(before[name], one) for name, one in client._residuals.items())

    for wrong in ([1.0, 2.0], (1.0,)):
        with pytest.raises(
            tersor.InvalidArgumentError, match="bias: pass an array or a tensor, not a"
        ):
            send(client, {**update(), "bias": wrong})

    def spoiled(change: Any) -> bytes:
        message = fobs.loads(send(tersor.federated.nvflare.Compress("int8"), update()))
        dxo = from_shareable(message)
        change(dxo)
        return bytes(fobs.dumps(dxo.update_shareable(message)))

    def flip(dxo: DXO) -> None:
        dxo.data["weight"][90] ^= 1

    def swap(dxo: DXO) -> None:
        dxo.data["bias"] = dxo.data["weight"]

    def claim(*shape: int) -> Any:
        def change(dxo: DXO) -> None:
            dxo.meta["tersor"]["arrays"]["bias"][1] = list(shape)

        return change

    def poison(dxo: DXO) -> None:
        """With a right signature and checksum: a client need not keep to the protocol."""
        signature = text_hash("bias")
        values = np.full(96, np.inf, np.float32)
        dxo.data["bias"] = np.array(tersor.Codec("int8").encode(values, signature=signature))

    def poison_plain(dxo: DXO) -> None:
        dxo.data["more"] = np.array([np.nan])

    def weigh(by: float) -> Any:
        return lambda dxo: dxo.set_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, by)

    def overflow(dxo: DXO) -> None:
        signature = text_hash("half")
        values = np.full(1_000, 1e6, np.float32)
        dxo.data["half"] = np.array(tersor.Codec("int8").encode(values, signature=signature))

    server = tersor.federated.nvflare.Decompress("int8")
    assert np.all(receive(server, spoiled(overflow)).data["half"] == 65504)
    for change, said in (
        (flip, "checksum"),
        (swap, "count"),
        (claim(1 << 50), "at most 2.48 values"),
        (claim(96 * 1024), "does not match the frame"),  # 1 KiB for each byte of the frame
        (claim(-12, -8), "does not match the frame"),
        (poison, "bias: the update is not finite; the update of site-1"),
        (poison_plain, "more: the update is not finite; the update of site-1"),
        (weigh(-5), "number of steps is -5.0: expected 0 or more; the update of site-1"),
        (weigh(float("nan")), "number of steps: the update is not finite; the update of site-1"),
    ):
        with pytest.raises(tersor.Error, match=said):
            receive(server, spoiled(change))


def test_a_collection_needs_a_codec_without_feedback() -> None:
    """Residuals have the names of arrays, which members may share."""
    members = {key: DXO(DataKind.WEIGHT_DIFF, update(seed)) for seed, key in enumerate("AB")}
    with pytest.raises(tersor.InvalidArgumentError, match="a collection of results needs"):
        send(tersor.federated.nvflare.Compress("int8+ef"), members, DataKind.COLLECTION)
    sent = send(tersor.federated.nvflare.Compress("none"), members, DataKind.COLLECTION)
    found = receive(tersor.federated.nvflare.Decompress("none"), sent).data
    for seed, key in enumerate("AB"):
        np.testing.assert_allclose(found[key].data["weight"], update(seed)["weight"])


def test_second_compress_filter_is_rejected() -> None:
    client = tersor.federated.nvflare.Compress("int8")
    message = client.process(DXO(DataKind.WEIGHT_DIFF, update()).to_shareable(), context())
    with pytest.raises(tersor.InvalidArgumentError, match="one Compress filter is enough"):
        client.process(message, context())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array([np.nan]), "bias: the update is not finite; the update of site-1 is left out"),
        (float("nan"), "bias: the update is not finite"),
        (np.full(3, np.nan, np.longdouble), "bias is float128: send booleans"),
        (np.full(3, np.nan, ">f4"), "bias is >f4: send booleans"),
        (np.full(3, np.nan + 0j), "bias is complex128: send booleans"),
    ],
)
def test_invalid_uncompressed_results_are_rejected(values: Any, said: str) -> None:
    plain = DXO(DataKind.WEIGHT_DIFF, {**update(), "bias": values}).to_shareable()
    at_server = context("server")
    at_server.set_peer_context(context())
    with pytest.raises(tersor.InvalidArgumentError, match=said):
        tersor.federated.nvflare.Decompress("int8").process(plain, at_server)
