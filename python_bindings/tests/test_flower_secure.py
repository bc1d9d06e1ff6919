"""Secure sums on Flower: all sets of leaving nodes, at every stage, and the server's knowledge."""

from __future__ import annotations

import itertools
import json
import math
import pathlib
import random
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pytest
from pages import programs

import tersor

pytest.importorskip("flwr")
from flower_nodes import SHAPES, Nodes, fedavg, model, update_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import strategy as flower

import tersor.federated.flower
from tersor.federated.flower import masks, secure_wire

SIX = (3, 4, 8, 15, 16, 23)
STAGES = secure_wire.STAGES
CLIP = 0.05
UNIT = CLIP / 127


def examples(node: int) -> int:
    return 10 * node


def secured(train: Callable[..., Any] | None = None, mods: list[Any] | None = None) -> ClientApp:
    app = ClientApp()

    @tersor.federated.flower.secure(app, mods=mods or [])
    def _train(message: Message, context: Context) -> Message:
        round_ = int(message.content["config"]["server-round"])
        assert "tersor" not in message.content
        start = {name: one.numpy() for name, one in message.content["arrays"].items()}
        update = (train or update_of)(context.node_id, round_)
        moved = {name: one + update.get(name, 0) for name, one in start.items()}
        record = ArrayRecord({name: Array(np.asarray(one)) for name, one in moved.items()})
        metrics = MetricRecord(
            {"num-examples": examples(context.node_id), "tokens": 30 - context.node_id}
        )
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def stage_of(message: Message) -> str:
    return str(message.metadata.message_type).partition(".")[2]


def goes(nodes: Collection[int], stage: str) -> Callable[[Message, Message], list[Message]]:
    """The nodes give no answers from a stage on."""
    late = STAGES[STAGES.index(stage) :]

    def answers(asked: Message, reply: Message) -> list[Message]:
        is_gone = asked.metadata.dst_node_id in nodes and stage_of(asked) in late
        return [] if is_gone else [reply]

    return answers


def one_round(
    nodes: Nodes, round_: int = 1, **options: Any
) -> tuple[ArrayRecord | None, Any, tersor.federated.flower.SecureStrategy]:
    strategy = tersor.federated.flower.SecureStrategy(fedavg(), **{"clip": CLIP, **options})
    sent = strategy.configure_train(round_, model(), ConfigRecord(), nodes)
    arrays, metrics = strategy.aggregate_train(round_, nodes.send_and_receive(sent))
    return arrays, metrics, strategy


def expected(nodes: Collection[int], weights: Callable[[int], float] = lambda _: 1) -> Any:
    total = sum(weights(node) for node in nodes)
    start = model()
    return {
        name: start[name].numpy()
        + sum(weights(node) / total * update_of(node, 1)[name] for node in nodes)
        for name in SHAPES
    }


def check_mean(arrays: ArrayRecord | None, wanted: dict[str, Any], unit: float) -> None:
    assert arrays is not None
    for name, one in wanted.items():
        assert np.abs(arrays[name].numpy() - one).max() <= unit + 1e-6
    assert arrays["seen"].numpy() == 3


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("threshold", [3, 4, 5])
def test_every_dropout_set_at_each_stage(
    stage: str, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for count in range(7):
        for gone in itertools.combinations(SIX, count):
            nodes = Nodes(secured(), SIX)
            nodes.answers = goes(gone, stage)
            arrays, metrics, strategy = one_round(nodes, threshold=threshold)
            left = [node for node in SIX if node not in gone]
            if len(left) - 1 < threshold:  # the neighbours of one that stays
                assert arrays is None
                assert "needed" in strategy.failures[1] or "too few" in strategy.failures[1]
                asked = [stage_of(one) for one in nodes.sent]
                assert stage == "unmask" or "unmask" not in asked  # nothing was unmasked
                continue
            assert strategy.failures == {}
            there = SIX if stage in ("confirm", "unmask") else left
            check_mean(arrays, expected(there), UNIT)
            assert metrics["clients"] == len(there)


def test_format_from_another_release_is_rejected() -> None:
    record = secure_wire.SumFormat(8, 16, 1.0, 0, "num-examples").record()
    assert secure_wire.SumFormat.from_record(record).record() == record
    before = {"lanes": record.pop("accumulator_bits"), "most_examples": record.pop("max_examples")}
    message = "the server sent no accumulator_bits, max_examples: install the same release"
    with pytest.raises(tersor.InvalidArgumentError, match=message):
        secure_wire.SumFormat.from_record(record | before)


@pytest.mark.parametrize("norm", [0.0, 1e-300])
def test_too_small_norm_encodes_zeros(norm: float) -> None:
    format = secure_wire.SumFormat(8, 16, CLIP, 0, "num-examples")
    values = [np.full(1_000, 0.01, np.float32)]
    assert not format.encode(values, 1, norm).codes.any()
    for wrong in (-1.0, math.nan):
        with pytest.raises(tersor.InvalidArgumentError, match="give 0 or more"):
            format.encode(values, 1, wrong)


def test_clip_bounds_the_example_weighted_update() -> None:
    format = secure_wire.SumFormat(8, 16, 0.5, 100, "num-examples")
    for weight, wanted in ((100, 0.5), (10, 5.0)):
        vector = format.encode([np.full(8, 9.0, np.float32)], weight)
        (found,), _, (cut,) = format.decode(vector, [8])
        assert cut == 8
        np.testing.assert_allclose(found * 100 / weight, wanted, rtol=0.01)


def test_masks_cancel_in_the_sum_of_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[Any] = []
    encode = secure_wire.SumFormat.encode

    def noted(self: Any, *parts: Any) -> Any:
        codes = encode(self, *parts)
        plain.append([one.copy() for one in codes.parts])
        return codes

    found: list[Any] = []
    decode = secure_wire.SumFormat.decode

    def noted_sum(self: Any, sums: Any, sizes: Any) -> Any:
        found.append([one.copy() for one in sums.parts])
        return decode(self, sums, sizes)

    monkeypatch.setattr(secure_wire.SumFormat, "encode", noted)
    monkeypatch.setattr(secure_wire.SumFormat, "decode", noted_sum)
    for lanes, bits in ((8, 4), (16, 8), (32, 14)):
        plain.clear()
        arrays, _, _ = one_round(Nodes(secured(), SIX), accumulator_bits=lanes, bits=bits)
        assert arrays is not None
        for place in (0, 1):
            parts = [one[place] for one in plain]
            assert np.array_equal(found[-1][place], sum(parts[1:], parts[0]))


def test_max_examples_weights_clients_by_examples() -> None:
    arrays, metrics, _ = one_round(Nodes(secured(), SIX), max_examples=160, bits=12)
    weights = {node: min(160, examples(node)) for node in SIX}
    check_mean(
        arrays, expected(SIX, weights.__getitem__), 6 * CLIP / 2047 * 160 / sum(weights.values())
    )
    assert set(metrics) == {"clients", "cut"}


def test_app_may_modify_received_arrays() -> None:
    app = ClientApp()

    @tersor.federated.flower.secure(app)
    def _train(message: Message, context: Context) -> Message:
        record, update = message.content["arrays"], update_of(context.node_id, 1)
        for name in SHAPES:
            record[name] = Array(record[name].numpy() + update[name])
        return Message(RecordDict({"arrays": record}), reply_to=message)

    arrays, _, _ = one_round(Nodes(app, SIX))
    check_mean(arrays, expected(SIX), UNIT)


def test_dropouts_in_a_ring_of_24_clients() -> None:
    draw = random.Random(0)
    ids = [draw.getrandbits(64) for _ in range(24)]
    failed = 0
    for seed, count in itertools.product(range(4), (3, 8, 12)):
        nodes = Nodes(secured(), ids)
        gone = random.Random(seed).sample(ids, count)
        nodes.answers = goes(gone, "masked")
        arrays, metrics, strategy = one_round(nodes, neighbours=8)
        if strategy.failures:
            assert arrays is None
            failed += 1
            assert count > 2  # of any eight neighbours, six must stay
        else:
            check_mean(arrays, expected([one for one in ids if one not in gone]), UNIT)
            assert metrics["clients"] == 24 - count
    assert failed >= 4


class Noted:
    """Records the keys of all masks and seals of a round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.masks: list[tuple[bytes, int]] = []
        self.seals: list[bytes] = []
        apply, seal = masks.apply_mask, masks.seal

        def noted_mask(parts: Any, key: bytes, sign: int) -> None:
            self.masks.append((key, sign))
            apply(parts, key, sign)

        def noted_seal(key: bytes, secret: bytes) -> bytes:
            self.seals.append(key)
            return seal(key, secret)

        monkeypatch.setattr(masks, "apply_mask", noted_mask)
        monkeypatch.setattr(masks, "seal", noted_seal)


def test_clients_use_an_own_mask_and_one_mask_per_neighbour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Noted(monkeypatch)
    nodes = Nodes(secured(), SIX)
    strategy = tersor.federated.flower.SecureStrategy(fedavg(), clip=CLIP)
    of_rounds = []
    for round_ in (1, 2):
        noted.masks.clear()
        nodes.send_and_receive(strategy.configure_train(round_, model(), ConfigRecord(), nodes))
        signs: dict[bytes, list[int]] = {}
        for key, sign in noted.masks:
            signs.setdefault(key, []).append(sign)
        assert sorted(map(sorted, signs.values())) == [[-1, 1]] * 15 + [[1]] * 6
        of_rounds.append(set(signs))
    assert not of_rounds[0] & of_rounds[1]
    # another key for each pair, direction, secret and round
    assert len(set(noted.seals)) == 2 * 6 * 5 * 2
    assert not set(noted.seals) & (of_rounds[0] | of_rounds[1])


def test_fewer_shares_than_the_threshold_do_not_recover_the_secret() -> None:
    for threshold, count in ((2, 3), (3, 5), (5, 8)):
        secret = masks.new_key()[0]
        shares = masks.split(secret, threshold, count)
        assert len({*shares, secret}) == count + 1
        for places in itertools.combinations(range(count), threshold):
            assert masks.combine({place: shares[place] for place in places}) == secret
        for places in itertools.combinations(range(count), threshold - 1):
            assert masks.combine({place: shares[place] for place in places}) != secret


def test_pair_key_is_symmetric_and_depends_on_digest_and_pair() -> None:
    (one, one_public), (other, other_public) = masks.new_key(), masks.new_key()
    digest, another = bytes(32), bytes(31) + b"1"
    key = masks.pair_key(one, other_public, digest, 3, 4)
    assert masks.pair_key(other, one_public, digest, 4, 3) == key
    assert masks.pair_key(one, other_public, another, 3, 4) != key
    assert masks.pair_key(one, other_public, digest, 3, 5) != key


def test_seal_opens_only_with_the_agreed_key() -> None:
    (one, one_public), (other, other_public), (third, _) = (masks.new_key() for _ in range(3))
    sealed = masks.seal(masks.agreed_key(one, other_public, "share", 1, 3, 4), b"secret")
    assert masks.unseal(masks.agreed_key(other, one_public, "share", 1, 3, 4), sealed) == b"secret"
    for key in (
        masks.agreed_key(other, one_public, "share", 2, 3, 4),
        masks.agreed_key(other, one_public, "share", 1, 4, 3),
        masks.agreed_key(other, one_public, "mask", 1, 3, 4),
        masks.agreed_key(third, one_public, "share", 1, 3, 4),
    ):
        assert masks.unseal(key, sealed) is None
    assert masks.unseal(key, b"short") is None


def test_clients_round_equal_updates_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = []
    encode = secure_wire.SumFormat.encode
    monkeypatch.setattr(
        secure_wire.SumFormat,
        "encode",
        lambda *a: codes.append(encode(*a)) or encode(*a),
    )

    def same(*_: int) -> dict[str, Any]:
        return update_of(1, 1)

    one_round(Nodes(secured(same), SIX))
    assert len({one.data.tobytes() for one in codes}) == 6


def uploads(count: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yields a client's uploads. The update is equal in all rounds."""
    for _ in range(count):
        nodes = Nodes(secured(), SIX)
        one_round(nodes)
        seen = [
            one.content["arrays"]["tersor"].data
            for one in nodes.seen
            if one.metadata.src_node_id == 8 and stage_of(one) == "masked"
        ]
        yield np.frombuffer(seen[0], np.uint8)


def test_masked_upload_bytes_are_uniform() -> None:
    bytes_seen = np.zeros(256)
    pairs_seen = np.zeros(256)
    for data in uploads(100):
        bytes_seen += np.bincount(data, minlength=256)
        pairs_seen += np.bincount(data[::2] >> 4 << 4 | data[1::2] >> 4, minlength=256)
    for seen in (bytes_seen, pairs_seen):
        mean = seen.sum() / 256
        chi_squared = ((seen - mean) ** 2 / mean).sum()
        assert 150 < chi_squared < 380  # 255 degrees: 1 in 10^6 on either side


def test_upload_has_two_bytes_per_value_and_no_metrics() -> None:
    nodes = Nodes(secured(), SIX)
    one_round(nodes)
    values = sum(int(np.prod(shape)) for shape in SHAPES.values())
    for one in nodes.seen:
        if stage_of(one) == "masked":
            (array,) = one.content["arrays"].values()
            assert len(array.data) <= 2 * values + 8 * (1 + len(SHAPES))
            assert not one.content.metric_records


def test_clipped_share_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    _, metrics, _ = one_round(Nodes(secured(), SIX), clip=0.01)
    assert metrics["cut"] == pytest.approx(0.317, abs=0.02)
    assert "% was clipped; give a larger clip" in caplog.text


def test_mods_run_before_encoding() -> None:
    def far(*_: int) -> dict[str, Any]:
        return {"layer.weight": np.full(SHAPES["layer.weight"], 50, np.float32)}

    def with_norm(message: Message, context: Context, call: Any) -> Message:
        message.content["config"]["clipping_norm"] = 0.5
        return call(message, context)  # type: ignore[no-any-return]

    app = secured(far, [with_norm, fixedclipping_mod])
    arrays, metrics, _ = one_round(Nodes(app, SIX), clip=1.0, bits=12)
    assert arrays is not None
    moved = arrays["layer.weight"].numpy() - model()["layer.weight"].numpy()
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=0.05)
    assert metrics["cut"] == 0


def changes(stage: str, node: int, change: Callable[[Message], Any]) -> Any:
    def answers(asked: Message, reply: Message) -> list[Message]:
        if asked.metadata.dst_node_id != node or stage_of(asked) != stage:
            return [reply]
        found = change(reply)
        return [reply] if found is None else list(found)

    return answers


def of_none(reply: Message) -> None:
    record = reply.content["tersor"]
    for name in list(record):
        if name.partition(".")[0] in ("mask", "shares"):
            del record[name]
    record["shares"] = "none"


def of_low_order(reply: Message) -> None:
    reply.content["tersor"]["mask"] = bytes(32)


def too_short(reply: Message) -> None:
    del reply.content["tersor"]["own.3"]


def takes_a_key(reply: Message) -> None:
    reply.content["tersor"]["mask"] = reply.content["tersor"]["seal"]


def shorter(reply: Message) -> None:
    array = reply.content["arrays"]["tersor"]
    array.data = array.data[:-2]


def of_round_two(reply: Message) -> None:
    reply.content["tersor"]["round"] = 2


@pytest.mark.parametrize(
    ("stage", "change", "said"),
    [
        ("keys", takes_a_key, "node 8 has another node's key"),
        ("keys", lambda reply: [reply, reply], "node 8, 'keys': the node answered twice"),
        ("keys", of_none, "node 8, 'keys': not the requested reply"),
        ("keys", of_low_order, "node 8, 'keys': not the requested reply"),
        ("shares", of_none, "node 8, 'shares': not the requested reply"),
        ("shares", too_short, "node 8, 'shares': not the requested reply"),
        ("shares", lambda reply: [reply, reply], "node 8, 'shares': the node answered twice"),
        ("shares", of_round_two, "node 8, 'shares': a reply of round 2, not 1"),
        ("masked", shorter, "node 8, 'masked': the vector has"),
        ("masked", of_round_two, "node 8, 'masked': a reply of round 2, not 1"),
    ],
)
def test_misbehaving_node_is_excluded(
    stage: str, change: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(secured(), SIX)
    nodes.answers = changes(stage, 8, change)
    arrays, _, strategy = one_round(nodes)
    assert strategy.failures == {}
    assert said in caplog.text
    check_mean(arrays, expected([node for node in SIX if node != 8]), UNIT)


def test_unauthenticated_share_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def spoil(reply: Message) -> None:
        sealed = reply.content["tersor"]["own.3"]
        reply.content["tersor"]["own.3"] = sealed[:-1] + bytes([sealed[-1] ^ 1])

    nodes = Nodes(secured(), SIX)
    nodes.answers = changes("shares", 8, spoil)
    arrays, _, strategy = one_round(nodes)
    assert "node 8's share or tag for node 3 is wrong" in caplog.text
    assert strategy.left_out == {8}
    check_mean(arrays, expected(SIX), UNIT)


def test_invalid_unmask_reply_does_not_change_the_mean(caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(secured(), SIX)
    nodes.answers = changes("unmask", 8, of_none)
    arrays, _, _ = one_round(nodes)
    check_mean(arrays, expected(SIX), UNIT)
    assert "node 8, 'unmask': not the requested reply" in caplog.text


def test_nonfinite_update_is_excluded() -> None:
    def broken(node: int, round_: int) -> dict[str, Any]:
        update = update_of(node, round_)
        if node == 8:
            update["norm"] = np.array([np.inf], np.float32)
        return update

    arrays, metrics, _ = one_round(Nodes(secured(broken), SIX))
    assert metrics["clients"] == 5
    check_mean(arrays, expected([node for node in SIX if node != 8]), UNIT)


def test_client_rejects_out_of_order_and_invalid_requests() -> None:
    nodes = Nodes(secured(), SIX)
    one_round(nodes, 1)
    run = str(nodes.states[8]["tersor.secure"]["run"])

    def error_of(stage: str, **told: Any) -> str:
        content = RecordDict({"tersor": secure_wire.packed({"run": run, **told})})
        message = Message(content, dst_node_id=8, message_type=f"train.{stage}")
        (reply,) = nodes.send_and_receive([message])
        return str(reply.error.reason) if reply.has_error() else "none"

    assert "round 1 began before" in error_of("keys", round=1)
    assert "has not completed 'confirm'" in error_of("unmask", round=1, nodes=[3])
    assert "has not completed 'masked'" in error_of("confirm", round=1, alive=[3])
    assert error_of("keys", round=2) == "none"
    assert "has not completed 'shares'" in error_of("masked", round=2)
    keys = [masks.new_key()[1] for _ in range(8)]
    mask, seal = dict(enumerate(keys[:4], 1)), dict(enumerate(keys[4:], 1))
    both: dict[str, Any] = {"round": 2, "mask": mask, "seal": seal}
    assert "has not completed 'keys'" in error_of("shares", **both | {"run": "other"}, threshold=3)
    assert "threshold=2 of 4" in error_of("shares", **both, threshold=2)
    assert "threshold=5 of 4" in error_of("shares", **both, threshold=5)
    alike = {**both, "mask": dict.fromkeys(mask, keys[0])}
    assert "two nodes have the same key" in error_of("shares", **alike, threshold=3)
    itself = {**both, "mask": mask | {8: keys[0]}}
    assert "this node is among its neighbours" in error_of("shares", **itself, threshold=3)
    unequal = {**both, "mask": mask | {9: keys[0]}}
    assert "a key is missing" in error_of("shares", **unequal, threshold=3)


@pytest.mark.parametrize(
    "alive", [(3, 4, 15, 16, 23, 90), (3, 4, 15, 16, 90), (3, 4, 8, 15, 16), (90,)]
)
def test_client_rejects_survivors_without_shares(alive: tuple[int, ...]) -> None:
    nodes = Nodes(secured(), SIX)
    strategy = tersor.federated.flower.SecureStrategy(fedavg(), clip=CLIP)
    nodes.send_and_receive(strategy.configure_train(1, model(), ConfigRecord(), nodes))
    assert strategy._round is not None
    record = secure_wire.packed(
        {**strategy._round.round_id, "tags": {node: bytes(16) for node in alive}}
    )
    message = Message(RecordDict({"tersor": record}), dst_node_id=8, message_type="train.confirm")
    (reply,) = nodes.send_and_receive([message])
    assert "lists a node without shares as alive" in str(reply.error.reason)


def test_released_share_opens_one_secret() -> None:
    nodes = Nodes(secured(), SIX)
    nodes.answers = goes([4], "masked")
    one_round(nodes)
    seen: dict[str, dict[int, Any]] = {}
    for one in nodes.seen:
        fields = secure_wire.unpacked(one.content["tersor"])
        seen.setdefault(stage_of(one), {})[one.metadata.src_node_id] = fields
    for holder, fields in seen["unmask"].items():
        assert set(fields["shares"]) == {node for node in SIX if node != holder}
        for owner, key in fields["shares"].items():
            sealed = {name: seen["shares"][owner][name][holder] for name in secure_wire.SECRETS}
            opened = {name for name, one in sealed.items() if masks.unseal(key, one) is not None}
            assert opened == ({"mask"} if owner == 4 else {"own"})


def test_clients_discard_secrets_after_the_round() -> None:
    def broken(node: int, round_: int) -> dict[str, Any]:
        return {"norm": np.array([np.nan], np.float32)} if node == 8 else update_of(node, round_)

    nodes = Nodes(secured(broken), SIX)
    one_round(nodes)
    for state in nodes.states.values():
        assert set(state["tersor.secure"]) == {"run", "round", "stage"}


def test_repeated_rounds_and_starts_keep_integers() -> None:
    nodes = Nodes(secured(), SIX)
    strategy = tersor.federated.flower.SecureStrategy(fedavg(), clip=CLIP)
    for _ in range(2):
        result = strategy.start(nodes, model(), num_rounds=3)
        assert strategy.failures == {}
        assert result.arrays["seen"].dtype == "int64"
        assert result.arrays["seen"].numpy() == 3
        assert [one["clients"] for one in result.train_metrics_clientapp.values()] == [6, 6, 6]


def test_weights_follow_the_weighted_by_key_option() -> None:
    nodes = Nodes(secured(), SIX)
    strategy = tersor.federated.flower.SecureStrategy(
        fedavg(weighted_by_key="tokens"), clip=CLIP, max_examples=160
    )
    sent = strategy.configure_train(1, model(), ConfigRecord(), nodes)
    arrays, _ = strategy.aggregate_train(1, nodes.send_and_receive(sent))
    tokens = {node: 30 - node for node in SIX}
    check_mean(arrays, expected(SIX, tokens.__getitem__), 6 * UNIT * 160 / sum(tokens.values()))


def test_zero_total_weight_yields_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "examples", lambda node: 0)
    arrays, _, strategy = one_round(Nodes(secured(), SIX), max_examples=10)
    assert arrays is None
    assert "weights are 0" in strategy.failures[1]


def test_clipped_small_array_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def jumps(node: int, round_: int) -> dict[str, Any]:
        return {**update_of(node, round_), "norm": np.array([5.0], np.float32)}

    _, metrics, _ = one_round(Nodes(secured(jumps), SIX))
    assert "norm: 100.0 % was clipped" in caplog.text
    assert metrics["cut"] < 0.01


def test_app_returning_a_different_model_is_rejected() -> None:
    def wider(*_: int) -> dict[str, Any]:
        return {"norm": np.ones(7, np.float32)}

    nodes = Nodes(secured(wider), SIX)
    one_round(nodes)
    assert "other names or shapes" in str(nodes.seen[-1].error.reason)


def test_per_client_strategies_are_rejected() -> None:
    for kind in (flower.Krum, flower.FedMedian, flower.FedTrimmedAvg):
        with pytest.raises(tersor.InvalidArgumentError, match="reads each client's reply"):
            tersor.federated.flower.SecureStrategy(kind(), clip=CLIP)


@pytest.mark.parametrize(("nodes", "threshold"), [((3,), None), ((3, 4, 8), 5)])
def test_too_few_clients_fail_the_round(nodes: tuple[int, ...], threshold: int | None) -> None:
    arrays, _, strategy = one_round(Nodes(secured(), nodes), threshold=threshold)
    assert arrays is None
    assert "neighbours" in strategy.failures[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 15}, "2 to 14 bits"),
        ({"accumulator_bits": 12}, "accumulator_bits=12"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"neighbours": 3}, "an even number"),
        ({"threshold": 2}, "threshold=2 of 5"),
        ({"threshold": 0}, "threshold=0"),
        ({"bits": 8, "accumulator_bits": 8}, "of 1 clients, not of 6"),
        ({"bits": 14}, "of 4 clients, not of 6"),
    ],
)
def test_invalid_options_raise_before_a_round(options: dict[str, Any], said: str) -> None:
    nodes = Nodes(secured(), SIX)
    with pytest.raises(tersor.InvalidArgumentError, match=said):
        one_round(nodes, **options)
    assert nodes.rounds == 0


def test_plain_strategy_receives_nothing_from_secure_clients() -> None:
    nodes = Nodes(secured(), SIX)
    fedavg().start(nodes, model(), num_rounds=1)
    assert all("No train function" in str(one.error.reason) for one in nodes.replies)


@pytest.mark.parametrize("seed", range(200))
def test_random_dropouts_at_random_stages(seed: int) -> None:
    draw = random.Random(seed)
    nodes = Nodes(secured(), SIX)
    deaths = {node: draw.choice(STAGES) for node in draw.sample(SIX, draw.randint(0, 3))}

    def answers(asked: Message, reply: Message) -> list[Message]:
        died = deaths.get(asked.metadata.dst_node_id)
        is_gone = died is not None and STAGES.index(stage_of(asked)) >= STAGES.index(died)
        return [] if is_gone else [reply]

    nodes.answers = answers
    arrays, _, strategy = one_round(nodes)
    there = [node for node in SIX if deaths.get(node) in (None, "confirm", "unmask")]
    assert bool(strategy.failures) == (len(deaths) > 1)  # of five neighbours four must stay
    if strategy.failures:
        assert arrays is None
    else:
        check_mean(arrays, expected(there), UNIT)


def test_documented_program() -> None:
    _, program = programs("docs/systems/federated.md", "flower")
    page: dict[str, Any] = {}
    exec(program, page)
    result = page["strategy"].start(Nodes(secured(), SIX), model(), num_rounds=2)
    assert page["strategy"].failures == {}
    assert result.train_metrics_clientapp[2]["clients"] == 6


def test_bench_compares_masks_with_flower(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "masks.json"
    words = ["--mib", "1", "--neighbours", "2", "--turns", "1", "--json", str(path)]
    subprocess.run([sys.executable, "-m", "tersor.bench", "masks", *words], check=True, timeout=120)
    (record,) = json.loads(path.read_text())
    assert record["count"] == 1 << 18
    assert record["payload_bytes"] < 0.26 * record["baseline_bytes"]
    assert record["cpu_seconds"] > 0
    assert record["baseline_cpu_seconds"] > 0
