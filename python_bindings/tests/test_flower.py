"""Federated learning on Flower: the client's mod and the server's strategy, node by node."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from pages import programs

import tersor

pytest.importorskip("flwr")
from flower_nodes import NODES, SHAPES, Nodes, adds, fedavg, model
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp import strategy as flower

import tersor.federated.flower
from tersor.federated.flower.wire import Header

Train = Callable[[dict[str, Any], int, int], dict[str, Any]]


def client_app(mods: list[Any], train: Train = adds) -> ClientApp:
    app = ClientApp()

    @app.train(mods=mods)
    def _train(message: Message, context: Context) -> Message:
        round_ = int(message.content["config"]["server-round"])
        assert "tersor" not in message.content
        arrays = {name: one.numpy() for name, one in message.content["arrays"].items()}
        moved = train(arrays, context.node_id, round_)
        record = ArrayRecord({name: Array(np.asarray(one)) for name, one in moved.items()})
        metrics = MetricRecord({"num-examples": 1 + context.node_id % 3})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def changes_in_place(mods: list[Any]) -> ClientApp:
    """An app that changes the received record and its arrays, and returns the record."""
    app = ClientApp()

    @app.train(mods=mods)
    def _train(message: Message, context: Context) -> Message:
        record = message.content["arrays"]
        arrays = {name: one.numpy() for name, one in record.items()}
        for name, one in adds(arrays, context.node_id, 1).items():
            if name == "layer.bias":
                record[name].data = Array(one).data
            else:
                record[name] = Array(np.asarray(one))
        metrics = MetricRecord({"num-examples": 1 + context.node_id % 3})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def run(
    nodes: Nodes,
    codec: str | None,
    rounds: int = 1,
    start: ArrayRecord | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    strategy: Any = fedavg()
    if codec is not None:
        strategy = tersor.federated.flower.Strategy(strategy, codec, **options)
    result = strategy.start(nodes, start if start is not None else model(), num_rounds=rounds)
    return result.arrays, strategy


def as_numpy(record: ArrayRecord) -> dict[str, np.ndarray[Any, Any]]:
    return {name: one.numpy() for name, one in record.items()}


def distance(one: ArrayRecord, other: ArrayRecord) -> float:
    pairs = [(one[name].numpy(), other[name].numpy()) for name in SHAPES]
    return float(max(np.abs(a.astype(float) - b).max() for a, b in pairs))


def test_documented_program() -> None:
    program, _ = programs("docs/systems/federated.md", "flower")
    page: dict[str, Any] = {}
    exec(program, page)
    nodes = Nodes(client_app([tersor.federated.flower.compress("int8+ef")]))
    page["strategy"].start(nodes, model(), num_rounds=2)
    assert page["strategy"].bytes_up[2][0] < 0.3 * page["strategy"].bytes_up[2][1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_result_matches_fedavg(dtype: str) -> None:
    start = model(dtype=dtype)
    plain, _ = run(Nodes(client_app([])), None, 3, start)
    same, _ = run(Nodes(client_app([tersor.federated.flower.compress("none")])), "none", 3, start)
    rounded = 2e-2 if dtype == "float16" else 1e-6
    assert distance(plain, same) < rounded
    short, strategy = run(
        Nodes(client_app([tersor.federated.flower.compress("int8+ef")])), "int8+ef", 3, start
    )
    assert distance(plain, short) < (2e-2 if dtype == "float16" else 2e-3)
    assert [short[name].dtype for name in SHAPES] == [dtype] * len(SHAPES)
    assert short["seen"].numpy() == pytest.approx(6) == plain["seen"].numpy()
    assert {frames < 0.3 * plain for frames, plain in strategy.bytes_up.values()} == {
        dtype != "float16"
    }


def test_reply_order_does_not_change_the_result() -> None:
    def of(nodes: Iterable[int]) -> dict[str, bytes]:
        app = client_app([tersor.federated.flower.compress("int8+ef")])
        arrays, _ = run(Nodes(app, nodes), "int8+ef", 2)
        return {name: one.data for name, one in arrays.items()}

    assert of(NODES) == of(reversed(NODES))


def test_feedback_sends_residuals_in_later_rounds() -> None:
    update = np.full((64, 96), 1e-4, np.float32)
    update[:, 0] = 1.0

    def adds_little(arrays: dict[str, Any], *_: int) -> dict[str, Any]:
        return {**arrays, "layer.weight": arrays["layer.weight"] + update}

    def moved(codec: str) -> float:
        app = client_app([tersor.federated.flower.compress(codec)], adds_little)
        arrays, _ = run(Nodes(app), codec, 400)
        change = arrays["layer.weight"].numpy() - model()["layer.weight"].numpy()
        return float(change[:, 1:].mean())

    assert moved("int8") == pytest.approx(0, abs=1e-4)
    assert moved("int8+ef") == pytest.approx(400 * 1e-4, rel=0.15)


@pytest.mark.parametrize("down", ["none", "difference:none"])
def test_app_may_modify_received_arrays(down: str) -> None:
    mods = [tersor.federated.flower.compress("none")]
    plain, _ = run(Nodes(changes_in_place([])), None, 3)
    found, _ = run(Nodes(changes_in_place(mods)), "none", 3, down=down)
    assert distance(plain, model()) > 0.01
    assert distance(plain, found) < 1e-6


def ask(strategy: tersor.federated.flower.Strategy, round_: int, nodes: Nodes) -> Message:
    """A node's reply in some round, from the same weights each time."""
    sent = strategy.configure_train(round_, model(), ConfigRecord(), nodes)
    return nodes.send_and_receive(sent)[0]


def weight_of(codec: str, reply: Message, strategy: tersor.federated.flower.Strategy) -> bytes:
    """Returns the decoded values of a reply."""
    arrays, _ = strategy.aggregate_train(strategy._header.round, [reply])
    assert arrays is not None
    return bytes(arrays["layer.weight"].data)


@pytest.mark.parametrize(("round_", "forgot"), [(3, False), (5, False), (6, True), (2, True)])
def test_old_residuals_are_dropped_and_reported(round_: int, forgot: bool) -> None:
    app = client_app([tersor.federated.flower.compress("int4+ef", forget_after=3)])
    nodes, fresh = Nodes(app, [7]), Nodes(app, [7])
    strategy = tersor.federated.flower.Strategy(fedavg(), "int4+ef")
    for round_before in (1, 2):
        ask(strategy, round_before, nodes)
    reply = ask(strategy, round_, nodes)
    (first,) = fresh.send_and_receive(nodes.sent)
    assert first.content["tersor"]["forgot"] is False
    assert reply.content["tersor"]["forgot"] is forgot
    found = [weight_of("int4+ef", one, strategy) for one in (reply, first)]
    assert (found[0] == found[1]) is forgot


def test_residuals_from_an_earlier_start_are_dropped() -> None:
    """Flower numbers rounds from 1 in each start."""
    views: dict[tuple[int, int], Any] = {}

    def looks(arrays: dict[str, Any], node: int, round_: int) -> dict[str, Any]:
        views[node, round_] = arrays["layer.weight"]
        return adds(arrays, node, round_)

    nodes = Nodes(client_app([tersor.federated.flower.compress("int8+ef")], looks))
    strategy = tersor.federated.flower.Strategy(fedavg(), "int8+ef", down="difference:int8")
    strategy.start(nodes, model(), num_rounds=3)
    nodes.nodes = [node for node in NODES if node != 7]
    strategy.start(nodes, model(5), num_rounds=3)
    nodes.nodes = list(NODES)
    nodes.send_and_receive(strategy.configure_train(4, model(6), ConfigRecord(), nodes))
    strategy.aggregate_train(4, [copy.deepcopy(one) for one in nodes.replies])
    forgot = {n.metadata.src_node_id: n.content["tersor"]["forgot"] for n in nodes.replies}
    assert forgot == {node: node == 7 for node in NODES}  # its residual is of the start before
    views.clear()
    nodes.send_and_receive(strategy.configure_train(5, model(6), ConfigRecord(), nodes))
    assert len(views) == 4
    assert all(np.array_equal(views[11, 5], one) for one in views.values())
    forgot = {n.metadata.src_node_id: n.content["tersor"]["forgot"] for n in nodes.replies}
    assert forgot == dict.fromkeys(NODES, False)  # of round 4, or first of this start


def test_clients_may_return_a_different_float_dtype() -> None:
    """FedAdam makes f64 of the weights, PyTorch's clients return f32."""

    def as_f32(arrays: dict[str, Any], node: int, round_: int) -> dict[str, Any]:
        return {n: np.asarray(one, "f4") for n, one in adds(arrays, node, round_).items()}

    wrapped = flower.FedAdam(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1)
    strategy = tersor.federated.flower.Strategy(wrapped, "int8+ef")
    nodes = Nodes(client_app([tersor.federated.flower.compress("int8+ef")], as_f32))
    strategy.start(nodes, model(), num_rounds=3)
    assert all(0 < frames < 0.3 * plain for frames, plain in strategy.bytes_up.values())
    assert len(nodes.states[7]["tersor.residuals"]) == 3


def test_clients_round_independently() -> None:
    def same(arrays: dict[str, Any], *_: int) -> dict[str, Any]:
        return {
            **arrays,
            "layer.weight": arrays["layer.weight"] + 0.01 * model(9)["layer.weight"].numpy(),
        }

    codec = "int4:rounding=stochastic"
    strategy = tersor.federated.flower.Strategy(fedavg(), codec)
    nodes = Nodes(client_app([tersor.federated.flower.compress(codec)], same))
    frames = []
    for round_ in (1, 2):
        nodes.send_and_receive(strategy.configure_train(round_, model(), ConfigRecord(), nodes))
        frames += [weight_of(codec, one, strategy) for one in nodes.replies]
    assert len(set(frames)) == 2 * len(NODES)


def as_not_finite(arrays: dict[str, Any], node: int, round_: int) -> dict[str, Any]:
    moved = adds(arrays, node, round_)
    if node == 7 and round_ == 2:
        moved["norm"] = np.array([np.nan], np.float32)
    return moved


def spoil(field: str, value: Any) -> Callable[[Message], None]:
    def change(reply: Message) -> None:
        reply.content["tersor"][field] = value

    return change


def cut(reply: Message) -> None:
    array = reply.content["arrays"]["layer.weight"]
    array.data = array.data[:-3]


def flip(reply: Message) -> None:
    array = reply.content["arrays"]["layer.weight"]
    array.data = array.data[:90] + bytes([array.data[90] ^ 1]) + array.data[91:]


def swap(reply: Message) -> None:
    arrays = reply.content["arrays"]
    arrays["layer.bias"].data, arrays["other.bias"].data = (
        arrays["other.bias"].data,
        arrays["layer.bias"].data,
    )


def spoil_integers(reply: Message) -> None:
    reply.content["arrays"]["seen"].data = b"no array"


def empty_integers(reply: Message) -> None:
    reply.content["arrays"]["seen"].data = b""


def send_plain_nan(reply: Message) -> None:
    reply.content["arrays"]["norm"] = Array(np.array([np.nan], np.float32))


def send_as(values: Any, name: str = "layer.bias", dtype: str | None = None) -> Any:
    """An uncompressed array of any dtype, with any name of the dtype."""

    def change(reply: Message) -> None:
        array = Array(values)
        array.dtype = dtype or array.dtype
        reply.content["arrays"][name] = array

    return change


def send_plain(reply: Message) -> None:
    reply.content["arrays"]["layer.bias"] = Array(np.zeros(96, np.float32))


def grow(reply: Message) -> None:
    reply.content["arrays"]["norm"].shape = (1 << 40,)


def send_nan_in_a_frame(reply: Message) -> None:
    """Signature and checksum are right, because a client may break the protocol."""
    signature = Header.from_record(reply.content["tersor"]).signature("layer.bias")
    values = np.full(96, np.nan, np.float32)
    frame = tersor.Codec("int8").encode(values, signature=signature)
    reply.content["arrays"]["layer.bias"].data = bytes(np.asarray(frame))


def claim_more(reply: Message) -> None:
    """The size is a petabyte. The server must not allocate a byte."""
    file = io.BytesIO()
    header = {"descr": "<i8", "fortran_order": False, "shape": (1 << 47,)}
    np.lib.format.write_array_header_1_0(file, header)
    reply.content["arrays"]["seen"].data = file.getvalue()


def open_a_bracket(reply: Message) -> None:
    """A header that NumPy cannot parse."""
    header = b"(".ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    reply.content["arrays"]["seen"].data = data


def weigh_by(value: float) -> Callable[[Message], None]:
    def change(reply: Message) -> None:
        reply.content["metrics"]["num-examples"] = value

    return change


def strip(reply: Message) -> None:
    del reply.content["tersor"]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (spoil("round", 1), "has round 1, here it is 2"),
        (spoil("codec", "int4"), "has codec 'int4'"),
        (spoil("model", "0"), "has model '0'"),
        (spoil("round", "x"), "invalid literal"),
        (spoil("round", float("inf")), "OverflowError"),
        (open_a_bracket, "TokenError"),
        (cut, "bytes"),
        (flip, "checksum"),
        (swap, "signature"),
        (spoil_integers, "magic string"),
        (empty_integers, "magic string"),
        (weigh_by(float("nan")), "num-examples is nan: expected a finite weight"),
        (weigh_by(-1.0), "num-examples is -1.0: expected a finite weight"),
        (claim_more, "another size than its header claims"),
        (send_plain_nan, "norm: the update is not finite; the reply is left out"),
        (send_nan_in_a_frame, "layer.bias: the update is not finite; the reply is left out"),
        (send_plain, "is not compressed"),
        (send_as(np.full(96, np.nan, np.longdouble)), "layer.bias is float128: send booleans"),
        (send_as(np.full(96, np.nan, ">f4")), "layer.bias is >f4: send booleans"),
        (send_as(np.full(96, np.nan, "f4"), dtype="bfloat16"), "is float32, not bfloat16"),
        (send_as(np.array(np.nan + 0j), "seen"), "seen is complex128: send booleans"),
        (send_as(np.array(np.nan), "seen", "int64"), "seen: the array is float64, not int64"),
        (send_as(np.array(np.nan), "seen"), "seen: the update is not finite"),
        (grow, "other names or shapes"),
        (strip, "tersor.federated.flower.compress"),
    ],
)
def test_invalid_reply_excludes_only_its_node(
    harm: Callable[[Message], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def tamper(_: Message, reply: Message) -> list[Message]:
        if reply.metadata.src_node_id == 7 and nodes.rounds == 1:
            harm(reply)
        return [reply]

    nodes = Nodes(client_app([tersor.federated.flower.compress("int8")]))
    nodes.answers = tamper
    without = Nodes(client_app([tersor.federated.flower.compress("int8")], dies_in_round_two))
    spoilt, _ = run(nodes, "int8", 3)
    missing, _ = run(without, "int8", 3)
    assert {n: one.data for n, one in spoilt.items()} == {n: one.data for n, one in missing.items()}
    assert "node 7: " in caplog.text
    assert said in caplog.text


@pytest.mark.parametrize("weight", [float("nan"), -5.0])
def test_wrapped_strategies_reject_invalid_example_weights(
    weight: float, caplog: pytest.LogCaptureFixture
) -> None:
    def tamper(_: Message, reply: Message) -> list[Message]:
        if reply.metadata.src_node_id == 7:
            reply.content["metrics"]["num-examples"] = weight
        return [reply]

    nodes = Nodes(client_app([tersor.federated.flower.compress("int8")]))
    nodes.answers = tamper
    private = flower.DifferentialPrivacyServerSideFixedClipping(fedavg(), 1e-4, 10.0, 4)
    strategy = tersor.federated.flower.Strategy(private, "int8")
    arrays = strategy.start(nodes, model(), num_rounds=1).arrays
    assert f"node 7: num-examples is {weight}: expected a finite weight" in caplog.text
    assert all(np.isfinite(one.numpy()).all() for one in arrays.values())


def test_frame_from_an_earlier_round_is_rejected(caplog: pytest.LogCaptureFixture) -> None:
    old: dict[int, Any] = {}

    def replays(_: Message, reply: Message) -> list[Message]:
        frames = reply.content["arrays"]
        if reply.metadata.src_node_id == 7:
            old.setdefault(0, frames["layer.weight"].data)
            frames["layer.weight"].data = old[0]
        return [reply]

    nodes = Nodes(client_app([tersor.federated.flower.compress("int8")]))
    nodes.answers = replays
    run(nodes, "int8", 2)
    assert "signature" in caplog.text


def test_duplicate_reply_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(client_app([tersor.federated.flower.compress("int8")]))
    once, _ = run(nodes, "int8")
    nodes = Nodes(client_app([tersor.federated.flower.compress("int8")]))
    nodes.answers = lambda asked, reply: [reply] * (1 + (reply.metadata.src_node_id == 7))
    twice, _ = run(nodes, "int8")
    assert as_bytes(once) == as_bytes(twice)
    assert "node 7: the node answered twice: start one SuperNode per node" in caplog.text


def as_bytes(record: ArrayRecord) -> dict[str, bytes]:
    return {name: one.data for name, one in record.items()}


def dies_in_round_two(arrays: dict[str, Any], node: int, round_: int) -> dict[str, Any]:
    if node == 7 and round_ == 2:
        raise RuntimeError("out of power")
    return adds(arrays, node, round_)


def error_of(nodes: Nodes, node: int) -> str:
    (found,) = [one for one in nodes.replies if one.metadata.src_node_id == node]
    return str(found.error.reason)


def test_nonfinite_update_is_not_sent() -> None:
    nodes = Nodes(client_app([tersor.federated.flower.compress("int8+ef")], as_not_finite))
    run(nodes, "int8+ef", 1)
    before = {name: one.data for name, one in nodes.states[7]["tersor.residuals"].items()}
    run_again = tersor.federated.flower.Strategy(fedavg(), "int8+ef")
    nodes.send_and_receive(run_again.configure_train(2, model(), ConfigRecord(), nodes))
    assert "norm: the update is not finite" in error_of(nodes, 7)
    kept = {name: one.data for name, one in nodes.states[7]["tersor.residuals"].items()}
    assert kept == before


def test_client_reports_codec_and_strategy_mismatches() -> None:
    nodes = Nodes(client_app([tersor.federated.flower.compress("int4")]))
    run(nodes, "int8", 1)
    assert "has codec 'int4" in error_of(nodes, 7)
    run(nodes, None, 1)
    assert "wrap its strategy in tersor.federated.flower.Strategy" in error_of(nodes, 7)


def other_names(arrays: dict[str, Any], *_: int) -> dict[str, Any]:
    return {f"{name}2": one for name, one in arrays.items()}


def test_app_returning_a_different_model_is_rejected() -> None:
    nodes = Nodes(client_app([tersor.federated.flower.compress("int8")], other_names))
    run(nodes, "int8", 1)
    assert "other names or shapes" in error_of(nodes, 7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"codec": "int9"}, "int9"),
        ({"codec": "int8+ef", "keep": "nothing"}, "needs keep="),
        ({"codec": "int8", "keep": "all"}, "keep='all'"),
        ({"codec": "int8", "forget_after": 0}, "1 or more"),
    ],
)
def test_invalid_client_options_raise(options: dict[str, Any], said: str) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=said):
        tersor.federated.flower.compress(**options)


@pytest.mark.parametrize("down", ["f32", "int8", "difference:int8+ef", "difference:", "bf16+ef"])
def test_invalid_down_option_raises(down: str) -> None:
    with pytest.raises(tersor.InvalidArgumentError):
        tersor.federated.flower.Strategy(fedavg(), "int8", down=down)


def bytes_down(nodes: Nodes) -> list[int]:
    return [sum(len(a.data) for a in m.content["arrays"].values()) for m in nodes.sent]


@pytest.mark.parametrize(
    ("down", "share", "error"), [("bf16", 0.55, 3e-3), ("difference:int8", 0.32, 1e-3)]
)
def test_down_option_saves_bytes(down: str, share: float, error: float) -> None:
    plain_nodes = Nodes(client_app([tersor.federated.flower.compress("none")]))
    plain, _ = run(plain_nodes, "none", 8)
    nodes = Nodes(client_app([tersor.federated.flower.compress("none")]))
    short, _ = run(nodes, "none", 8, down=down)
    assert distance(plain, short) < 1e-5  # updates here do not depend on where they begin
    assert max(bytes_down(nodes)) < share * min(bytes_down(plain_nodes))
    seen = {}

    def looks(arrays: dict[str, Any], node: int, round_: int) -> dict[str, Any]:
        seen[node, round_] = arrays
        return adds(arrays, node, round_)

    run(Nodes(client_app([tersor.federated.flower.compress("none")], looks)), "none", 8, down=down)
    for name in SHAPES:
        views = [seen[node, 8][name] for node in NODES]
        assert all(np.array_equal(views[0], other) for other in views)
    fine, _ = run(Nodes(client_app([])), None, 7)
    view = ArrayRecord({name: Array(one) for name, one in seen[7, 8].items()})
    assert distance(view, fine) < 10 * error


def test_clients_recover_from_missed_rounds_and_lost_state() -> None:
    views: dict[tuple[int, int], dict[str, Any]] = {}

    def looks(arrays: dict[str, Any], node: int, round_: int) -> dict[str, Any]:
        views[node, round_] = arrays
        return adds(arrays, node, round_)

    nodes = Nodes(client_app([tersor.federated.flower.compress("none")], looks))
    strategy = tersor.federated.flower.Strategy(fedavg(), "none", down="difference:int8")
    arrays, sizes = model(), {}
    for round_ in range(1, 13):
        absent = {3: [7], 4: [7], 6: [5], 7: [5], 8: [5], 9: [5], 10: [5]}.get(round_, [])
        if round_ == 10:
            nodes.states[11] = RecordDict()
        nodes.nodes = [one for one in NODES if one not in absent]
        sent = strategy.configure_train(round_, arrays, ConfigRecord(), nodes)
        replies = nodes.send_and_receive(sent)
        sizes[round_] = dict(zip(nodes.nodes, bytes_down(nodes), strict=True))
        sizes[round_] = {
            m.metadata.dst_node_id: n for m, n in zip(nodes.sent, bytes_down(nodes), strict=True)
        }
        found, _ = strategy.aggregate_train(round_, replies)
        assert found is not None
        arrays = found
        for name in SHAPES:
            trained = [views[node, round_][name] for node in nodes.nodes if (node, round_) in views]
            assert all(np.array_equal(trained[0], other) for other in trained)
    assert 2.5 < sizes[5][7] / sizes[5][11] < 3.5  # three differences
    assert (11, 10) not in views  # refused: the server learns that it has nothing
    assert sizes[11][11] > 3 * sizes[11][23]
    assert sizes[11][5] > 3 * sizes[11][23]  # it missed too many
    assert sizes[12][5] == sizes[12][11] == sizes[12][23]


def test_lost_reply_leaves_the_client_in_sync() -> None:
    """The client has newer weights than the server."""
    views: dict[tuple[int, int], Any] = {}

    def looks(arrays: dict[str, Any], node: int, round_: int) -> dict[str, Any]:
        views[node, round_] = arrays["layer.weight"]
        return adds(arrays, node, round_)

    def loses(_: Message, reply: Message) -> list[Message]:
        lost = reply.metadata.src_node_id == 7 and nodes.rounds in (1, 2)
        return [] if lost else [reply]

    nodes = Nodes(client_app([tersor.federated.flower.compress("int8")], looks))
    nodes.answers = loses
    run(nodes, "int8", 5, down="difference:int8")
    failed = [one.metadata.src_node_id for one in nodes.seen if one.has_error()]
    assert failed == []
    assert len(nodes.seen) == 5 * len(NODES) - 2
    for round_ in range(1, 6):
        assert np.array_equal(views[7, round_], views[11, round_])


def far(arrays: dict[str, Any], *_: int) -> dict[str, Any]:
    return {**arrays, "layer.weight": arrays["layer.weight"] + 50}


def sent_with(codec: str, mod: Any) -> tuple[np.ndarray[Any, Any], Message]:
    """Returns the decoded update of a client after one of Flower's mods."""
    np.random.seed(0)  # Flower's noise
    nodes = Nodes(client_app([tersor.federated.flower.compress(codec), mod], far), [7])
    strategy = tersor.federated.flower.Strategy(fedavg(), codec)
    config = ConfigRecord({"clipping_norm": 0.1} if mod is fixedclipping_mod else {})
    sent = strategy.configure_train(1, model(), config, nodes)
    (reply,) = nodes.send_and_receive(sent)
    arrays, _ = strategy.aggregate_train(1, [reply])
    start = model()["layer.weight"].numpy()
    return (start if arrays is None else arrays["layer.weight"].numpy()) - start, reply


def test_codec_encodes_the_output_of_privacy_mods() -> None:
    clipped, _ = sent_with("int8", fixedclipping_mod)
    assert np.linalg.norm(clipped) == pytest.approx(0.1, rel=0.01)
    noisy, _ = sent_with("int8", LocalDpMod(0.1, 0.1, 10.0, 1e-5))
    assert 0.1 < np.linalg.norm(noisy) < 10


def test_feedback_with_a_clipping_norm_is_rejected() -> None:
    sent, reply = sent_with("int8+ef", fixedclipping_mod)
    assert not sent.any()
    assert 'a codec without "+ef"' in str(reply.error.reason)
