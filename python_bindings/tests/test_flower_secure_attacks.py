"""Attacks on secure sums: by servers, by clients, and by observers of honest rounds."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import tersor

pytest.importorskip("flwr")
from flower_nodes import Nodes, fedavg
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import strategy as flower

import tersor.federated.flower
from tersor.federated.flower import masks, secure_wire
from tersor.federated.flower.secure_round import (
    Disputes,
    default_threshold,
    failure_probability,
    required_neighbours,
    ring,
)
from tersor.federated.flower.secure_wire import SumFormat, round_digest

CLIP = 0.05
SHAPE = (200, 200)
NINE = range(1, 10)
FORMAT = SumFormat(8, 16, CLIP, 0, "num-examples")


def model(value: float = 0.0, shape: tuple[int, ...] = SHAPE) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.full(shape, value, np.float32))})


def update_of(node: int, shape: tuple[int, ...] = SHAPE) -> Any:
    return (0.01 * np.random.default_rng(node).standard_normal(shape)).astype(np.float32)


def secured(train: Callable[[int, Any], Any] | None = None, **options: Any) -> ClientApp:
    """Returns an app whose clients add an update to the received weights. ``train`` may return
    another update, or raise."""
    app = ClientApp()

    @tersor.federated.flower.secure(app, **options)
    def _train(message: Message, context: Context) -> Message:
        start = message.content["arrays"]["w"].numpy()
        config = message.content.config_records.get("config", {})
        added = (train or (lambda node, _: update_of(node, start.shape)))(context.node_id, config)
        record = ArrayRecord({"w": Array(np.asarray(start + added, np.float32))})
        metrics = MetricRecord({"num-examples": 10 * context.node_id})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def one_round(
    nodes: Nodes,
    strategy: tersor.federated.flower.SecureStrategy,
    round_: int = 1,
    change: Callable[[Message], None] = lambda _: None,
) -> Any:
    sent = list(strategy.configure_train(round_, model(), ConfigRecord({"lr": 0.1}), nodes))
    for one in sent:
        change(one)
    return strategy.aggregate_train(round_, nodes.send_and_receive(sent))


def strategy_of(**options: Any) -> tersor.federated.flower.SecureStrategy:
    return tersor.federated.flower.SecureStrategy(fedavg(), **{"clip": CLIP, **options})


def asked_stages(nodes: Nodes) -> set[str]:
    return {str(one.metadata.message_type).partition(".")[2] for one in nodes.seen}


# A server that tells its victim other values than the other clients.


def other_clip(message: Message) -> None:
    message.content["tersor"]["clip"] = 1e30


def other_weights(message: Message) -> None:
    message.content["arrays"] = model(1.0)


def other_configuration(message: Message) -> None:
    message.content["config"] = ConfigRecord({"lr": 0.0})


def other_cohort(message: Message) -> None:
    message.content["tersor"]["cohort"] = bytes(32)


def other_weight(message: Message) -> None:
    message.content["tersor"]["max_examples"] = 10**9


@pytest.mark.parametrize(
    "change", [other_clip, other_weights, other_configuration, other_cohort, other_weight]
)
@pytest.mark.parametrize("are_tags_checked", [True, False])
def test_inconsistent_server_values_reveal_no_update(
    change: Callable[[Message], None], are_tags_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = 4

    def lie(message: Message) -> None:
        if message.metadata.dst_node_id != victim:
            message.content = copy.deepcopy(message.content)
            change(message)

    def train(node: int, config: Mapping[str, Any]) -> Any:
        return update_of(node) * (config["lr"] > 0)

    if not are_tags_checked:  # then the masks alone protect the victim
        monkeypatch.setattr(masks, "is_tag", lambda *_: True)
    strategy = strategy_of()
    arrays, _ = one_round(Nodes(secured(train), NINE), strategy, change=lie)
    if are_tags_checked:
        assert arrays is None
        assert "needed" in strategy.failures[1]
        return
    found = arrays["w"].numpy().ravel().astype(np.float64)
    assert abs(np.corrcoef(found, update_of(victim).ravel())[0, 1]) < 0.03


def test_consistent_server_values_yield_the_mean() -> None:
    arrays, _ = one_round(Nodes(secured(), NINE), strategy_of())
    mean = sum(update_of(node) for node in NINE) / 9
    assert np.abs(arrays["w"].numpy() - mean).max() <= CLIP / 127


def test_digest_covers_all_round_values() -> None:
    told = FORMAT.record() | {"run": "r", "round": 1, "clients": 9, "cohort": bytes(32)}
    config = ConfigRecord({"lr": 0.1, "names": ["a"], "on": True})

    def digest(threshold: int = 6, arrays: ArrayRecord | None = None, **other: Any) -> bytes:
        records = {"tersor": ConfigRecord(told | other), "config": config, "more": MetricRecord()}
        return round_digest(RecordDict({"arrays": arrays or model(), **records}), threshold)

    renamed = ArrayRecord({"v": model()["w"]})
    others = {"run": "s", "round": 2, "clients": 8, "cohort": bytes(31) + b"1", "clip": 0.06}
    others |= {"bits": 7, "accumulator_bits": 32, "max_examples": 5, "weight_key": "tokens"}
    found = [digest(), digest(5), digest(arrays=model(1.0)), digest(arrays=renamed)]
    found += [digest(arrays=model(shape=(100, 400)))]
    found += [digest(**{name: value}) for name, value in others.items()]
    assert len(set(found)) == len(found)
    assert digest(clip=np.float64(CLIP)) == digest()
    config["names"] = ["a", "b"]
    assert digest() not in found


# A server that tells clients different survivors.


class LyingServer:
    """Relays the clients' keys, shares and tags, and reports other survivors to each client."""

    def __init__(self, around: Mapping[int, list[int]], threshold: int) -> None:
        self.around, self.threshold = around, threshold
        self.nodes = Nodes(secured(min_clients=2, min_neighbours=1), around)
        self.told = {"run": "r", "round": 1}
        keys = {node: self.ask(node, "keys") for node in around}
        self.sealed = {}
        for node, others in around.items():
            told = {name: {one: keys[one][name] for one in others} for name in ("mask", "seal")}
            self.sealed[node] = self.ask(node, "shares", **told, threshold=threshold)
        self.begun = copy.deepcopy(self.nodes.states)

    def ask(self, node: int, stage: str, arrays: ArrayRecord | None = None, **more: Any) -> Any:
        records: dict[str, Any] = {"tersor": secure_wire.packed(self.told | more)}
        records |= {"arrays": arrays} if arrays else {}
        message = Message(RecordDict(records), dst_node_id=node, message_type=f"train.{stage}")
        reply = self.nodes.answer(message)
        return None if reply.has_error() else secure_wire.unpacked(reply.content["tersor"])

    def attack(
        self, senders: Mapping[int, list[int]], gone: Mapping[int, set[int]]
    ) -> tuple[set[int], set[int]]:
        """Returns the nodes with a reconstructed own mask, and the nodes with a reconstructed mask
        key."""
        self.nodes.states = copy.deepcopy(self.begun)
        common = FORMAT.record() | {"clients": len(self.around), "cohort": bytes(32)}
        tags: dict[tuple[str, int, int], bytes] = {}
        for node, others in senders.items():
            sealed = {
                name: {one: self.sealed[one][name][node] for one in others}
                for name in secure_wire.SECRETS
            }
            reply = self.ask(node, "masked", model(shape=(2,)), **common, **sealed)
            tags |= {("masked", node, one): tag for one, tag in reply["tags"].items()}
        for node, others in senders.items():
            alive = [one for one in others if one not in gone[node]]
            found = {one: tags.get(("masked", one, node), bytes(16)) for one in alive}
            reply = self.ask(node, "confirm", tags=found)
            if reply is not None:
                tags |= {("alive", node, one): tag for one, tag in reply["tags"].items()}
        shares: dict[tuple[int, bool], int] = {}
        for node, others in senders.items():
            found = {one: tags.get(("alive", one, node), bytes(16)) for one in others}
            reply = self.ask(node, "unmask", tags=found)
            for one in [] if reply is None else reply["shares"]:
                key = one, one in gone[node]
                shares[key] = shares.get(key, 0) + 1
        enough = [key for key, count in shares.items() if count >= self.threshold]
        return {one for one, of_key in enough if not of_key}, {
            one for one, of_key in enough if of_key
        }


def smallest_sum(
    senders: Mapping[int, list[int]], own_masks: set[int], mask_keys: set[int]
) -> int | None:
    """Returns the number of clients in the smallest sum that a server can unmask; None without a
    sum.

    A pair mask cancels if a mask key of the pair is known, or if both updates are in the sum.
    """
    sizes = []
    for victim in own_masks:
        members, open_ends = {victim}, [victim]
        while open_ends:
            node = open_ends.pop()
            if node in mask_keys:
                continue
            for other in senders[node]:
                if other not in mask_keys and other not in members:
                    members.add(other)
                    open_ends.append(other)
        if members <= own_masks:
            sizes.append(len(members))
    return min(sizes, default=None)


def isolating(
    around: Mapping[int, list[int]], threshold: int, victim: int
) -> tuple[dict[int, list[int]], dict[int, set[int]]]:
    """Isolates a victim. The victim masks with the minimum of neighbours. For each neighbour, the
    server tells enough holders "the neighbour is gone". No holder misses too many nodes."""
    peers = around[victim][:threshold]
    senders = {node: peers if node == victim else others for node, others in around.items()}
    gone: dict[int, set[int]] = {node: set() for node in around}
    for peer in peers:
        holders = [one for one in around[peer] if one != victim]
        for holder in sorted(holders, key=lambda one: len(gone[one]))[:threshold]:
            gone[holder].add(peer)
    return senders, gone


@pytest.mark.parametrize("clients", [4, 6, 8, 9, 24, 100])
@pytest.mark.parametrize("is_usual", [True, False])
def test_false_survivor_lists_isolate_no_client(
    clients: int, is_usual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = ring(list(range(1, clients + 1)), 8)
    most = len(around[4])
    threshold = default_threshold(most) if is_usual else most // 2 + 1
    server = LyingServer(around, threshold)
    lies = isolating(around, threshold, 4)
    size = smallest_sum(lies[0], *server.attack(*lies))
    assert size is None or size > threshold
    honest = dict(around), {node: set() for node in around}
    assert smallest_sum(honest[0], *server.attack(*honest)) == clients
    if clients >= 24 and not is_usual:  # the attack succeeds on clients that check no tags
        monkeypatch.setattr(masks, "is_tag", lambda *_: True)
        assert smallest_sum(lies[0], *server.attack(*lies)) == 1


def subsets(nodes: Sequence[int], least: int) -> list[list[int]]:
    sizes = range(least, len(nodes) + 1)
    return [list(one) for size in sizes for one in itertools.combinations(nodes, size)]


def test_every_false_survivor_list_for_four_clients() -> None:
    around = ring([1, 2, 3, 4], 8)
    server = LyingServer(around, 2)
    lies = [[set(one) for one in subsets(around[node], 0) if len(one) < 2] for node in around]
    sizes = []
    for gone in itertools.product(*lies):
        found = server.attack(around, dict(zip(around, gone, strict=True)))
        sizes.append(smallest_sum(around, *found))
    assert {3, 4} <= {size for size in sizes if size is not None}
    assert all(size is None or size >= 3 for size in sizes)


@pytest.mark.parametrize("clients", [4, 5, 7, 12])
def test_random_false_survivor_lists_on_random_graphs(clients: int) -> None:
    for seed in range(3):
        draw = random.Random(seed)
        ids = list(range(1, clients + 1))
        around = ring(ids, draw.choice([4, 6, 8]))
        most = len(around[1])
        threshold = draw.randint(most // 2 + 1, most)
        server = LyingServer(around, threshold)
        for _ in range(25):
            senders = {n: draw.choice(subsets(around[n], threshold)) for n in ids}
            gone = {n: set(draw.sample(senders[n], len(senders[n]) - threshold)) for n in ids}
            size = smallest_sum(senders, *server.attack(senders, gone))
            assert size is None or size > threshold


# Clients' own bounds.


@pytest.mark.parametrize(
    ("bounds", "clients", "said"),
    [
        (
            {"min_neighbours": 1},
            2,
            "a sum could have 2 clients; this client accepts no fewer than 3",
        ),
        ({"min_clients": 8}, 9, "a sum could have 7 clients; this client accepts no fewer than 8"),
        ({"min_neighbours": 9}, 9, "8 neighbours: this client accepts no fewer than 9"),
        ({"max_clip": 0.04}, 9, "clip=0.05: this client accepts up to 0.04"),
    ],
)
def test_client_enforces_its_own_bounds(bounds: Any, clients: int, said: str) -> None:
    nodes = Nodes(secured(**bounds), range(1, clients + 1))
    strategy = strategy_of()
    assert one_round(nodes, strategy)[0] is None
    assert 1 in strategy.failures
    assert said in " ".join(str(one.error.reason) for one in nodes.seen if one.has_error())


def test_satisfied_bounds_pass_and_invalid_bounds_raise() -> None:
    nodes = Nodes(secured(min_clients=7, min_neighbours=8, max_clip=CLIP), NINE)
    assert one_round(nodes, strategy_of())[0] is not None
    for wrong in (
        {"min_clients": 1},
        {"max_clip": 0.0},
        {"example_step": 0},
        {"min_neighbours": 0},
    ):
        with pytest.raises(tersor.InvalidArgumentError, match=next(iter(wrong))):
            secured(**wrong)


# Counts.


def test_counts_reveal_only_their_sum() -> None:
    for bits, lanes in ((2, 8), (4, 16), (14, 32)):
        format = SumFormat(bits, lanes, CLIP, 5000, "num-examples")
        sums = []
        for weights in ((7, 1), (4, 4), (8, 0)):
            total = format.zeros([3])
            for weight in weights:
                total.add(format.encode([np.zeros(3, np.float32)], weight))
            sums.append(total.data.tobytes())
        assert sums[0] == sums[1] == sums[2]
        assert format.decode(total, [3])[1:] == (8, [0])


def test_example_step_rounds_example_counts() -> None:
    for step, total in ((1, 450), (100, 900), (60, 720)):
        seen = []
        strategy = strategy_of(max_examples=5000)
        mean = strategy._mean

        def noted(sums: Any, clients: int, seen: Any = seen, mean: Any = mean) -> Any:
            seen.append(int(sums.counts[0]))
            return mean(sums, clients)

        strategy._mean = noted  # type: ignore[method-assign]
        assert one_round(Nodes(secured(example_step=step), NINE), strategy)[0] is not None
        assert seen == [total]


# Clients that lie.


def lies(stage: str, node: int, change: Callable[[Any], None]) -> Any:
    def answers(asked: Message, reply: Message) -> list[Message]:
        is_liar = asked.metadata.dst_node_id == node
        if is_liar and asked.metadata.message_type == f"train.{stage}" and not reply.has_error():
            change(reply.content["tersor"])
        return [reply]

    return answers


def overwritten(table: str, size: int, most: int = 9) -> Callable[[Any], None]:
    """Zeros in place of a table's first values."""

    def change(record: Any) -> None:
        for name in [name for name in record if name.startswith(table + ".")][:most]:
            record[name] = bytes(size)

    return change


one_wrong_share = overwritten("shares", 32, 1)
wrong_shares = overwritten("shares", 32)
wrong_tags = overwritten("tags", 16)
nonsense = overwritten("own", 60)


def wrong_public_key(record: Any) -> None:
    record["own"] = masks.new_key()[1]


def accuses_all(record: Any) -> None:
    record.update({f"bad.{node}": True for node in NINE if node != 1})


@pytest.mark.parametrize(
    ("stage", "node", "change", "is_lost", "is_asked"),
    [
        ("unmask", 1, one_wrong_share, False, True),
        ("unmask", 1, wrong_shares, False, True),
        ("confirm", 1, wrong_tags, False, True),
        ("masked", 1, wrong_tags, True, False),
        ("masked", 1, accuses_all, True, False),
        ("shares", 7, nonsense, True, False),
        ("keys", 7, wrong_public_key, True, True),
    ],
)
def test_malicious_client_fails_at_most_one_round(
    stage: str, node: int, change: Any, is_lost: bool, is_asked: bool
) -> None:
    nodes, strategy = Nodes(secured(), NINE), strategy_of()
    nodes.answers = lies(stage, node, change)
    arrays, _ = one_round(nodes, strategy, 1)
    assert (arrays is None) == is_lost
    assert ("unmask" in asked_stages(nodes)) == is_asked
    assert strategy.left_out == {node}
    for round_ in (2, 3):
        arrays, metrics = one_round(nodes, strategy, round_)
        assert metrics["clients"] == 8
        mean = sum(update_of(one) for one in NINE if one != node) / 8
        assert np.abs(arrays["w"].numpy() - mean).max() <= CLIP / 127
    one_round(nodes, strategy, 1)  # another run, which asks all
    assert metrics["clients"] == 8


def test_disputes_blame_a_single_accuser_but_not_several() -> None:
    disputes = Disputes()
    disputes.add(7, 1, "share")
    assert disputes.at_fault() == {7}
    for sender in (2, 3):
        disputes.add(sender, 1, "share")
    assert disputes.at_fault() == {1}


def test_client_messages_are_escaped_and_truncated(caplog: pytest.LogCaptureFixture) -> None:
    def train(node: int, _: Any) -> Any:
        if node == 3:
            raise ValueError("\x1b[2J\nERROR: all is lost\u202e" + "x" * 10_000)
        return update_of(node)

    one_round(Nodes(secured(train), NINE), strategy_of())
    (said,) = (one.getMessage() for one in caplog.records if "is lost" in one.getMessage())
    assert said.isprintable()
    assert len(said) < 500
    assert r"\x1b[2J\nERROR" in said


# Differential privacy.

Noise = flower.DifferentialPrivacyClientSideFixedClipping


def tiny(*_: Any) -> Any:
    return np.full(SHAPE, 1e-9, np.float32)


@pytest.mark.parametrize("gone", [(), (7, 8)])
def test_noise_scales_with_the_clients_in_the_sum(gone: tuple[int, ...]) -> None:
    nodes = Nodes(secured(tiny, mods=[fixedclipping_mod]), NINE)
    nodes.answers = lambda asked, reply: (
        [] if asked.metadata.dst_node_id in gone and "arrays" in asked.content else [reply]
    )
    inner = Noise(fedavg(weighted_by_key="tokens"), 1.0, 0.5, 9)
    strategy = tersor.federated.flower.SecureStrategy(inner, clip=CLIP)
    for round_ in (1, 2):
        arrays, metrics = one_round(nodes, strategy, round_)
        assert metrics["clients"] == 9 - len(gone)
        assert arrays["w"].numpy().std() == pytest.approx(0.5 / (9 - len(gone)), rel=0.02)
        assert inner.num_sampled_clients == 9


def test_flower_accountant_counts_secure_rounds() -> None:
    pa = pytest.importorskip("flwr.supercore.privacy_accounting")
    rdp = pytest.importorskip("flwr.supercore.privacy_accounting.rdp_accountant")
    pytest.importorskip("dp_accounting")
    relation = next(iter(pa.NeighboringRelation))
    config = pa.PrivacyConfig(1e-5, 9, relation, pa.SamplingMethod.NO_AMPLIFICATION)
    inner = Noise(fedavg(), 1.0, 0.5, 9, accountant=rdp.RdpAccountant(config))
    strategy = tersor.federated.flower.SecureStrategy(inner, clip=CLIP)
    nodes = Nodes(secured(tiny, mods=[fixedclipping_mod]), NINE)
    for round_ in (1, 2):
        arrays, _ = one_round(nodes, strategy, round_)
        assert arrays["w"].numpy().std() == pytest.approx(0.5 / 9, rel=0.02)
        assert inner.privacy_spent().num_releases == round_


def test_unsupported_noise_strategies_are_rejected() -> None:
    for kind in ("ClientSideAdaptive", "ServerSideAdaptive", "ServerSideFixed"):
        noisy = getattr(flower, f"DifferentialPrivacy{kind}Clipping")
        options = {"noise_multiplier": 1.0, "num_sampled_clients": 9}
        options |= {"clipping_norm": 0.5} if "Fixed" in kind else {"clipped_count_stddev": 3.0}
        with pytest.raises(tersor.InvalidArgumentError, match=kind):
            tersor.federated.flower.SecureStrategy(noisy(fedavg(), **options), clip=CLIP)
    with pytest.raises(tersor.InvalidArgumentError, match="Krum"):
        tersor.federated.flower.SecureStrategy(Noise(flower.Krum(), 1.0, 0.5, 9), clip=CLIP)
    with pytest.raises(tersor.InvalidArgumentError, match="equal weights"):
        tersor.federated.flower.SecureStrategy(
            Noise(fedavg(), 1.0, 0.5, 9), clip=CLIP, max_examples=9
        )
    around = Noise(strategy_of(), 1.0, 0.5, 9)
    with pytest.raises(
        tersor.InvalidArgumentError, match="wrap DifferentialPrivacyClientSideFixed"
    ):
        around.configure_train(1, model(), ConfigRecord(), Nodes(secured(), NINE))


def norm_of(vector: Any, format: SumFormat) -> float:
    values, _, _ = format.decode(vector, [vector.codes.size])
    return float(np.linalg.norm(values[0].astype(np.float64)))


@pytest.mark.parametrize("count", [1, 10, 10**4, 10**6])
def test_rounding_respects_the_norm_bound(count: int) -> None:
    update = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    update *= np.float32(0.5 / np.linalg.norm(update))
    format = SumFormat(8, 16, 1.0 if count < 100 else CLIP, 0, "")
    free = [norm_of(format.encode([update], 1), format) for _ in range(20)]
    assert max(free) > 0.5  # of 20 roundings at random, one exceeds the norm
    for _ in range(20 if count < 100 else 2):
        assert 0.45 < norm_of(format.encode([update], 1, 0.5), format) <= 0.5


def test_clients_respect_the_clipping_norm_of_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    encode = SumFormat.encode

    def noted(self: SumFormat, *parts: Any) -> Any:
        made = encode(self, *parts)
        norms.append(norm_of(made, self))
        return made

    monkeypatch.setattr(SumFormat, "encode", noted)
    strategy = tersor.federated.flower.SecureStrategy(Noise(fedavg(), 0.1, 0.5, 9), clip=CLIP)
    one_round(Nodes(secured(mods=[fixedclipping_mod]), NINE), strategy)
    assert len(norms) == 9
    assert max(norms) <= 0.5


# Graphs.


def test_default_threshold_is_two_thirds() -> None:
    found = [default_threshold(count) for count in range(1, 10)]
    assert found == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    assert all(2 * threshold > count for count, threshold in enumerate(found, 1))


def rounds_without_a_sum(clients: int, neighbours: int, dropouts: float, draws: int) -> float:
    around = ring(list(range(clients)), neighbours)
    threshold, draw, failed = default_threshold(len(around[0])), random.Random(0), 0
    for _ in range(draws):
        there = {node for node in around if draw.random() >= dropouts}
        failed += any(len(there & set(others)) < threshold for others in around.values())
    return failed / draws


def test_failure_probability_bounds_simulated_failures() -> None:
    for clients, neighbours, dropouts in ((20, 8, 0.05), (100, 16, 0.05), (100, 8, 0.02)):
        found = rounds_without_a_sum(clients, neighbours, dropouts, 400)
        bound = failure_probability(clients, neighbours, default_threshold(neighbours), dropouts)
        assert found <= bound * 1.2 + 0.02
        assert bound < 4 * found + 0.02
    assert failure_probability(6, 5, 4, 0.1) == pytest.approx(1 - 0.9**6 - 6 * 0.1 * 0.9**5)
    assert failure_probability(6, 5, 4, 0.0) == 0


def test_neighbour_count_grows_with_the_cohort() -> None:
    counts = [required_neighbours(clients, 0.05, 1e-4) for clients in (4, 9, 100, 1000, 10_000)]
    assert counts == sorted(counts)
    for clients, count in zip((100, 1000, 10_000), counts[2:], strict=True):
        assert failure_probability(clients, count, default_threshold(count), 0.05) <= 1e-4
        assert failure_probability(clients, count - 2, default_threshold(count - 2), 0.05) > 1e-4
    assert rounds_without_a_sum(100, counts[2], 0.05, 200) == 0


def test_likely_round_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(secured(), range(24))
    one_round(nodes, strategy_of(neighbours=8, dropouts=0.1))
    assert "round 1 has no sum with a probability of up to 91 %" in caplog.text
    caplog.clear()
    one_round(nodes, strategy_of(dropouts=0.01))
    assert "no sum" not in caplog.text
    for wrong in ({"dropouts": 1.0}, {"failure_rate": 0.0}, {"neighbours": "all"}):
        with pytest.raises((tersor.InvalidArgumentError, TypeError)):
            strategy_of(**wrong)
