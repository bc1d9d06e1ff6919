"""Numbers from training records, without drawing or text.

A run is one codec with one seed. The time to an accuracy ends with the first epoch whose test
accuracy reaches the target, without interpolation. Accuracy is the last epoch's accuracy, not the
best.
"""

import dataclasses
import math
import statistics
import typing

import palette
import records
import units

TARGETS = (0.80, 0.85, 0.87, 0.88)
CLEAR_FACTOR = 1.05  # smaller factors are within the drift of a shared machine


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation. The deviation of a single value is NaN."""

    mean: float
    deviation: float
    count: int

    @property
    def known_deviation(self) -> float | None:
        return self.deviation if self.count > 1 else None

    @staticmethod
    def of(values: typing.Iterable[float]) -> "Spread":
        known = list(values)
        deviation = statistics.stdev(known) if len(known) > 1 else math.nan
        return Spread(statistics.fmean(known), deviation, len(known))

    @staticmethod
    def of_known(values: typing.Iterable[float | None]) -> "Spread | None":
        """Returns None if a value is unknown."""
        every = list(values)
        known = [value for value in every if value is not None]
        return Spread.of(known) if len(known) == len(every) else None


@dataclasses.dataclass(frozen=True)
class Run:
    seed: int
    epochs: list[records.TrainRecord]  # in order

    @property
    def last(self) -> records.TrainRecord:
        return self.epochs[-1]

    @property
    def epoch_seconds(self) -> float:
        """The wall-clock time per epoch, computed from the length of the whole run."""
        return self.last.seconds / self.last.epoch

    def seconds_to(self, accuracy: float) -> float | None:
        return next((e.seconds for e in self.epochs if e.accuracy >= accuracy), None)


@dataclasses.dataclass(frozen=True)
class CodecRuns:
    """All runs of a codec in a setting."""

    codec: str
    runs: list[Run]  # by seed

    def ended(self, field: str) -> Spread | None:
        """A field of the last epochs. None if a run lacks the field."""
        return Spread.of_known(getattr(run.last, field) for run in self.runs)

    @property
    def accuracy(self) -> Spread:
        return Spread.of(run.last.accuracy for run in self.runs)

    @property
    def epoch_seconds(self) -> float:
        return statistics.fmean(run.epoch_seconds for run in self.runs)

    def seconds_to(self, accuracy: float) -> list[float]:
        """Returns the times of all runs that reach the accuracy."""
        times = (run.seconds_to(accuracy) for run in self.runs)
        return [time for time in times if time is not None]

    def step_mean(self, field: str) -> float:
        """The mean of a per-step field over all epochs and seeds; 0 if unknown."""
        values = (getattr(epoch, field) for run in self.runs for epoch in run.epochs)
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else 0.0

    @property
    def exposed_share(self) -> float:
        step = self.step_mean("step_seconds")
        return self.step_mean("exposed_seconds") / step if step > 0 else 0.0

    @property
    def hidden_share(self) -> float:
        work = self.step_mean("communication_seconds")
        return self.step_mean("hidden") / work if work > 0 else math.nan

    @property
    def codec_seconds(self) -> float:
        return self.step_mean("encode_seconds") + self.step_mean("decode_seconds")

    def curve(self) -> list[tuple[float, Spread]]:
        """(mean seconds, accuracy) at the end of each epoch common to all runs."""
        columns = zip(*(run.epochs for run in self.runs))
        return [
            (statistics.fmean(e.seconds for e in c), Spread.of(e.accuracy for e in c))
            for c in columns
        ]


@dataclasses.dataclass(frozen=True)
class Training:
    """All codecs with the same model, recipe, ranks and link."""

    model: str | None
    learning_rate: float | None
    ranks: int
    link: str
    codecs: dict[str, CodecRuns]  # in the palette's order

    def speedup(self, codec: str, baseline: str) -> float | None:
        """The ratio of the baseline's epoch time to this codec's epoch time."""
        references = [runs.epoch_seconds for runs in self.codecs.values() if runs.codec == baseline]
        return units.speedup(self.codecs[codec].epoch_seconds, references)

    def busy_factor(self, codec: str, baseline: str) -> float | None:
        """The factor between compute times if this factor exceeds the rest of the difference.

        All codecs of tersor-bench compute the same. A codec's threads slow the trainer by at most
        the codec's encode and decode time; other work on the machine causes the remaining factor.
        Records of the Python benchmark (with a model) may compare optimizers: always None.
        """
        fast, slow = sorted(
            (self.codecs[name] for name in (codec, baseline)),
            key=lambda runs: runs.step_mean("compute_seconds"),
        )
        least = slow.step_mean("compute_seconds") - slow.codec_seconds
        known = fast.step_mean("compute_seconds")
        if self.model or known == 0 or least < CLEAR_FACTOR * known:
            return None
        steps = fast.step_mean("step_seconds"), slow.step_mean("step_seconds") - (least - known)
        return least / known if least * min(steps) > known * max(steps) else None

    def compression(self, codec: str) -> float | None:
        sent = self.codecs[codec].step_mean("wire_bytes")
        if "none" not in self.codecs or sent == 0:
            return None
        return self.codecs["none"].step_mean("wire_bytes") / sent

    def paired(self, codec: str, baseline: str) -> dict[int, float]:
        """Final accuracy minus the baseline's accuracy, per common seed."""
        if codec not in self.codecs or baseline not in self.codecs:
            return {}
        other = {run.seed: run.last.accuracy for run in self.codecs[baseline].runs}
        runs = self.codecs[codec].runs
        return {r.seed: r.last.accuracy - other[r.seed] for r in runs if r.seed in other}

    def accuracy_change(self, codec: str, baseline: str) -> float:
        """The mean over common seeds; without common seeds, the difference of the means."""
        pairs = self.paired(codec, baseline)
        if pairs:
            return statistics.fmean(pairs.values())
        return self.codecs[codec].accuracy.mean - self.codecs[baseline].accuracy.mean

    def pareto_front(self) -> list[str]:
        """The Pareto front of few bytes and high accuracy, by means."""
        codecs = self.codecs.items()
        return pareto_front({c: (r.step_mean("wire_bytes"), r.accuracy.mean) for c, r in codecs})

    @property
    def tells_losses(self) -> bool:
        """True if a logarithmic axis can show loss by bytes."""
        return all(
            r.ended("loss") is not None and r.step_mean("wire_bytes") > 0
            for r in self.codecs.values()
        )


def trainings(found: list[records.Record]) -> list[Training]:
    """Groups records by setting, codec and seed."""
    settings = _grouped(
        records.select(found, records.TrainRecord),
        lambda r: (r.model or "", r.learning_rate or 0.0, r.ranks, r.link),
    )
    return [
        Training(model or None, learning_rate or None, ranks, link, _codecs(group))
        for (model, learning_rate, ranks, link), group in settings.items()
    ]


def differ_in_rate_alone(found: list[Training]) -> bool:
    """True if trainings have equal model, ranks and link, and have losses and learning rates."""
    settings = {(one.model, one.ranks, one.link) for one in found}
    return len(settings) == 1 and all(one.learning_rate and one.tells_losses for one in found)


def _codecs(group: list[records.TrainRecord]) -> dict[str, CodecRuns]:
    by_codec = _grouped(group, lambda r: r.codec)
    return {
        codec: CodecRuns(codec, _runs(by_codec[codec])) for codec in palette.in_order(set(by_codec))
    }


def _runs(group: list[records.TrainRecord]) -> list[Run]:
    by_seed = _grouped(group, lambda r: r.seed)
    return [Run(seed, sorted(epochs, key=lambda r: r.epoch)) for seed, epochs in by_seed.items()]


def _grouped(items: list, key: typing.Callable) -> dict:
    return records.grouped(sorted(items, key=key), key)


def pareto_front(costs_and_gains: dict[str, tuple[float, float]]) -> list[str]:
    """Returns the names of points not dominated by another point.

    A point dominates another if cost and gain are at least as good, and cost or gain is strictly
    better. Names are sorted by increasing cost and therefore by increasing gain.
    """

    def beaten(name: str) -> bool:
        cost, gain = costs_and_gains[name]
        return any(
            c <= cost and g >= gain and (c, g) != (cost, gain) for c, g in costs_and_gains.values()
        )

    front = [name for name in costs_and_gains if not beaten(name)]
    return sorted(front, key=lambda name: costs_and_gains[name])
