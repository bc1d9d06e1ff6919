"""Secure sums on Flower: every set of nodes that goes, at every stage; what a server sees."""

from __future__ import annotations

import itertools
import json
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
from flwr.supercore.task_identity import TaskIdentity

import tersor.flower
from tersor.flower import masks, secure_wire

SIX = (3, 4, 8, 15, 16, 23)
STAGES = secure_wire.STAGES
CLIP = 0.05
UNIT = CLIP / 127


@pytest.fixture(autouse=True)
def of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def examples(node: int) -> int:
    return 10 * node


def secured(train: Callable[..., Any] | None = None, mods: list[Any] | None = None) -> ClientApp:
    app = ClientApp()

    @tersor.flower.secure(app, mods=mods or [])
    def _train(message: Message, context: Context) -> Message:
        round_ = int(message.content["config"]["server-round"])
        assert "tersor" not in message.content
        start = {name: one.numpy() for name, one in message.content["arrays"].items()}
        update = (train or update_of)(context.node_id, round_)
        moved = {name: one + update.get(name, 0) for name, one in start.items()}
        record = ArrayRecord({name: Array(np.asarray(one)) for name, one in moved.items()})
        metrics = MetricRecord({"num-examples": examples(context.node_id), "secret": 0.5})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def stage_of(message: Message) -> str:
    return str(message.metadata.message_type).partition(".")[2]


def goes(nodes: Collection[int], stage: str) -> Callable[[Message, Message], list[Message]]:
    """They do not answer from that stage on."""
    late = STAGES[STAGES.index(stage) :]

    def answers(asked: Message, reply: Message) -> list[Message]:
        is_gone = asked.metadata.dst_node_id in nodes and stage_of(asked) in late
        return [] if is_gone else [reply]

    return answers


def one_round(
    nodes: Nodes, round_: int = 1, **options: Any
) -> tuple[ArrayRecord | None, Any, tersor.flower.SecureStrategy]:
    strategy = tersor.flower.SecureStrategy(fedavg(), **{"clip": CLIP, **options})
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
def test_every_set_that_goes_at_a_stage(
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
            there = SIX if stage == "unmask" else left
            check_mean(arrays, expected(there), UNIT)
            assert metrics["clients"] == len(there)


def test_masks_leave_the_sum_of_codes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[Any] = []
    encode = secure_wire.SumFormat.encode

    def noted(self: Any, values: Any, weight: int) -> Any:
        codes = encode(self, values, weight)
        plain.append(codes.copy())
        return codes

    found: list[Any] = []
    decode = secure_wire.SumFormat.decode

    def noted_sum(self: Any, sums: Any) -> Any:
        found.append(sums.copy())
        return decode(self, sums)

    monkeypatch.setattr(secure_wire.SumFormat, "encode", noted)
    monkeypatch.setattr(secure_wire.SumFormat, "decode", noted_sum)
    for lanes, bits in ((8, 4), (16, 8), (32, 14)):
        plain.clear()
        arrays, _, _ = one_round(Nodes(secured(), SIX), lanes=lanes, bits=bits)
        assert arrays is not None
        assert np.array_equal(found[-1], sum(plain[1:], plain[0]))


def test_clients_may_count_by_their_examples() -> None:
    arrays, metrics, _ = one_round(Nodes(secured(), SIX), most_examples=160, bits=12)
    weights = {node: min(160, examples(node)) for node in SIX}
    check_mean(
        arrays, expected(SIX, weights.__getitem__), 6 * CLIP / 2047 * 160 / sum(weights.values())
    )
    assert set(metrics) == {"clients", "cut"}


def test_a_ring_of_many() -> None:
    ids = random.Random(0).sample(range(1, 2**62), 24)
    for seed in range(6):
        nodes = Nodes(secured(), ids)
        gone = random.Random(seed).sample(ids, 3)
        nodes.answers = goes(gone, "masked")
        arrays, metrics, strategy = one_round(nodes, neighbours=8)
        if strategy.failures:
            assert arrays is None
            continue
        check_mean(arrays, expected([one for one in ids if one not in gone]), UNIT)
        assert metrics["clients"] == 21


def uploads(count: int) -> Iterator[np.ndarray[Any, Any]]:
    """What the server sees of one client, whose update is the same each time."""
    for _ in range(count):
        nodes = Nodes(secured(), SIX)
        one_round(nodes)
        seen = [
            one.content["arrays"]["tersor"].data
            for one in nodes.seen
            if one.metadata.src_node_id == 8 and stage_of(one) == "masked"
        ]
        yield np.frombuffer(seen[0], np.uint8)


def test_an_upload_is_uniform() -> None:
    bytes_seen = np.zeros(256)
    pairs_seen = np.zeros(256)
    for data in uploads(100):
        bytes_seen += np.bincount(data, minlength=256)
        pairs_seen += np.bincount(data[::2] >> 4 << 4 | data[1::2] >> 4, minlength=256)
    for seen in (bytes_seen, pairs_seen):
        mean = seen.sum() / 256
        chi_squared = ((seen - mean) ** 2 / mean).sum()
        assert 150 < chi_squared < 380  # 255 degrees: 1 in 10^6 on either side


def test_two_bytes_a_value_and_no_metric() -> None:
    nodes = Nodes(secured(), SIX)
    one_round(nodes)
    values = sum(int(np.prod(shape)) for shape in SHAPES.values())
    for one in nodes.seen:
        if stage_of(one) == "masked":
            (array,) = one.content["arrays"].values()
            assert len(array.data) <= 2 * values + 64
            assert not one.content.metric_records


def test_what_is_cut_is_told(caplog: pytest.LogCaptureFixture) -> None:
    _, metrics, _ = one_round(Nodes(secured(), SIX), clip=0.01)
    assert metrics["cut"] == pytest.approx(0.317, abs=0.02)
    assert "% of the values were cut" in caplog.text


def test_mods_stand_inside() -> None:
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
        ("keys", lambda reply: [reply, reply], "node 8 answered 'keys' twice"),
        ("shares", lambda reply: [reply, reply], "node 8 answered 'shares' twice"),
        ("shares", of_round_two, "node 8, 'shares': not what it was asked for"),
        ("masked", shorter, "node 8: the vector has"),
        ("masked", of_round_two, "node 8: an update of round 2"),
    ],
)
def test_a_node_that_misbehaves_is_left_out(
    stage: str, change: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(secured(), SIX)
    nodes.answers = changes(stage, 8, change)
    arrays, _, strategy = one_round(nodes)
    assert strategy.failures == {}
    assert said in caplog.text
    check_mean(arrays, expected([node for node in SIX if node != 8]), UNIT)


def test_a_share_that_does_not_authenticate_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def spoil(reply: Message) -> None:
        sealed = list(reply.content["tersor"]["sealed"])
        sealed[0] = sealed[0][:-1] + bytes([sealed[0][-1] ^ 1])
        reply.content["tersor"]["sealed"] = sealed

    nodes = Nodes(secured(), SIX)
    nodes.answers = changes("shares", 8, spoil)
    arrays, _, _ = one_round(nodes)
    assert "node 8's share for 3 does not authenticate" in caplog.text
    check_mean(arrays, expected(SIX), UNIT)


def test_shares_that_do_not_fit_end_the_round() -> None:
    def spoil(reply: Message) -> None:
        record = reply.content["tersor"]
        record["shares"] = [bytes(32) for _ in record["shares"]]

    nodes = Nodes(secured(), SIX)
    nodes.answers = changes("unmask", 3, spoil)
    arrays, _, strategy = one_round(nodes)
    assert arrays is None
    assert "do not fit together" in strategy.failures[1]


def test_an_update_that_is_not_finite_stays_away() -> None:
    def broken(node: int, round_: int) -> dict[str, Any]:
        update = update_of(node, round_)
        if node == 8:
            update["norm"] = np.array([np.inf], np.float32)
        return update

    arrays, metrics, _ = one_round(Nodes(secured(broken), SIX))
    assert metrics["clients"] == 5
    check_mean(arrays, expected([node for node in SIX if node != 8]), UNIT)


def test_a_client_refuses_what_is_out_of_turn() -> None:
    nodes = Nodes(secured(), SIX)
    one_round(nodes, 1)

    def error_of(stage: str, **told: Any) -> str:
        content = RecordDict({"tersor": ConfigRecord(told)})
        message = Message(content, dst_node_id=8, message_type=f"train.{stage}")
        (reply,) = nodes.send_and_receive([message])
        return str(reply.error.reason) if reply.has_error() else "none"

    assert "round 1 has begun already" in error_of("keys", round=1)
    assert "is not behind 'masked'" in error_of("unmask", round=1, alive=[3], gone=[])
    assert error_of("keys", round=2) == "none"
    assert "is not behind 'shares'" in error_of("masked", round=2)
    keys = [masks.new_key()[1] for _ in range(8)]
    both: dict[str, Any] = {"round": 2, "nodes": [1, 2, 3, 4], "masks": keys[:4], "seals": keys[4:]}
    assert "threshold=2 of 4" in error_of("shares", **both, threshold=2)
    assert "threshold=5 of 4" in error_of("shares", **both, threshold=5)
    alike = {**both, "masks": [keys[0]] * 4}
    assert "two nodes have the same key" in error_of("shares", **alike, threshold=3)
    twice = {**both, "nodes": [1, 2, 3, 3]}
    assert "named twice" in error_of("shares", **twice, threshold=3)


def test_a_client_gives_one_of_two_secrets() -> None:
    def ask_for_both(asked: Message, reply: Message) -> list[Message]:
        return [reply]

    nodes = Nodes(secured(), SIX)
    strategy = tersor.flower.SecureStrategy(fedavg(), clip=CLIP)
    nodes.send_and_receive(strategy.configure_train(1, model(), ConfigRecord(), nodes))
    told = {"round": 1, "alive": [3, 4, 15, 16], "gone": [16]}
    message = Message(
        RecordDict({"tersor": ConfigRecord(told)}), dst_node_id=8, message_type="train.unmask"
    )
    (reply,) = nodes.send_and_receive([message])
    assert "both secrets" in str(reply.error.reason)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 15}, "2 to 14 bits"),
        ({"lanes": 12}, "lanes=12"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"neighbours": 3}, "an even number"),
        ({"threshold": 2}, "threshold=2 of 5"),
        ({"threshold": 6}, "threshold=6 of 5"),
        ({"bits": 8, "lanes": 8}, "of 1 clients, not of 6"),
        ({"bits": 14}, "of 4 clients, not of 6"),
    ],
)
def test_what_cannot_be_summed_is_said_before_a_round(options: dict[str, Any], said: str) -> None:
    nodes = Nodes(secured(), SIX)
    with pytest.raises(tersor.InvalidArgument, match=said):
        one_round(nodes, **options)
    assert nodes.rounds == 0


def test_a_plain_server_gets_nothing_of_a_secured_client() -> None:
    nodes = Nodes(secured(), SIX)
    fedavg().start(nodes, model(), num_rounds=1)
    assert all("No train function" in str(one.error.reason) for one in nodes.replies)


@pytest.mark.parametrize("seed", range(40))
def test_nodes_that_die_anywhere(seed: int) -> None:
    draw = random.Random(seed)
    nodes = Nodes(secured(), SIX)
    deaths = {node: draw.choice(STAGES) for node in draw.sample(SIX, draw.randint(0, 3))}

    def answers(asked: Message, reply: Message) -> list[Message]:
        died = deaths.get(asked.metadata.dst_node_id)
        is_gone = died is not None and STAGES.index(stage_of(asked)) >= STAGES.index(died)
        return [] if is_gone else [reply]

    nodes.answers = answers
    arrays, _, strategy = one_round(nodes)
    there = [node for node in SIX if deaths.get(node) in (None, "unmask")]
    if strategy.failures:
        assert arrays is None
        assert len(deaths) > 1
    else:
        check_mean(arrays, expected(there), UNIT)


def test_the_pages_program() -> None:
    _, program = programs("docs/federated.md", "flower")
    page: dict[str, Any] = {}
    exec(program, page)
    result = page["strategy"].start(Nodes(secured(), SIX), model(), num_rounds=2)
    assert page["strategy"].failures == {}
    assert result.train_metrics_clientapp[2]["clients"] == 6


def test_masks_are_timed_beside_flowers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "masks.json"
    words = ["--mib", "1", "--neighbours", "2", "--turns", "1", "--json", str(path)]
    subprocess.run([sys.executable, "-m", "tersor.bench", "masks", *words], check=True, timeout=120)
    (record,) = json.loads(path.read_text())
    assert record["count"] == 1 << 18
    assert record["payload_bytes"] < 0.26 * record["baseline_bytes"]
    assert record["cpu_seconds"] > 0
    assert record["baseline_cpu_seconds"] > 0
