"""What the training records say, in numbers: no drawing and no text here.

A run is one codec with one seed. Time to an accuracy is the wall-clock time at the end of the first
epoch whose test accuracy reaches it: nothing is interpolated. Accuracy is that of the last epoch,
not the best.
"""

import dataclasses
import math
import statistics
import typing

import palette
import records

TARGETS = (0.80, 0.85, 0.87, 0.88)


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation; the deviation of a single value is NaN."""

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
        """None where one is unknown."""
        every = list(values)
        known = [value for value in every if value is not None]
        return Spread.of(known) if len(known) == len(every) else None


@dataclasses.dataclass(frozen=True)
class Run:
    seed: int
    epochs: list[records.TrainRecord]  # in order

    @property
    def accuracy(self) -> float:
        return self.epochs[-1].accuracy

    @property
    def loss(self) -> float | None:
        return self.epochs[-1].loss

    @property
    def test_loss(self) -> float | None:
        return self.epochs[-1].test_loss

    @property
    def epoch_seconds(self) -> float:
        """Wall-clock time of one epoch, from the run's whole length."""
        return self.epochs[-1].seconds / self.epochs[-1].epoch

    def seconds_to(self, accuracy: float) -> float | None:
        return next((e.seconds for e in self.epochs if e.accuracy >= accuracy), None)


@dataclasses.dataclass(frozen=True)
class CodecRuns:
    """All runs of one codec in one setting."""

    codec: str
    runs: list[Run]  # by seed

    @property
    def accuracy(self) -> Spread:
        return Spread.of(run.accuracy for run in self.runs)

    @property
    def loss(self) -> Spread | None:
        """None where a run does not tell."""
        return Spread.of_known(run.loss for run in self.runs)

    @property
    def test_loss(self) -> Spread | None:
        """Likewise."""
        return Spread.of_known(run.test_loss for run in self.runs)

    @property
    def epoch_seconds(self) -> float:
        return statistics.fmean(run.epoch_seconds for run in self.runs)

    def seconds_to(self, accuracy: float) -> list[float]:
        """One time for each run that gets there."""
        times = (run.seconds_to(accuracy) for run in self.runs)
        return [time for time in times if time is not None]

    def step_mean(self, field: str) -> float:
        """Mean of a per-step field over all epochs and seeds; 0 where nobody can tell."""
        values = (getattr(epoch, field) for run in self.runs for epoch in run.epochs)
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else 0.0

    @property
    def hidden_share(self) -> float:
        work = self.step_mean("communication_seconds")
        return self.step_mean("hidden") / work if work > 0 else math.nan

    def curve(self) -> list[tuple[float, Spread]]:
        """(mean seconds, accuracy) at the end of each epoch that every run has."""
        columns = zip(*(run.epochs for run in self.runs))
        return [
            (statistics.fmean(e.seconds for e in c), Spread.of(e.accuracy for e in c))
            for c in columns
        ]


@dataclasses.dataclass(frozen=True)
class Training:
    """All codecs by which the same model was trained alike, with the same ranks and link."""

    model: str | None
    learning_rate: float | None
    ranks: int
    link: str
    codecs: dict[str, CodecRuns]  # in the palette's order

    def speedup(self, codec: str, baseline: str) -> float | None:
        """How many times shorter an epoch is on the clock than with the baseline."""
        if baseline not in self.codecs or self.codecs[codec].epoch_seconds == 0:
            return None
        return self.codecs[baseline].epoch_seconds / self.codecs[codec].epoch_seconds

    def compression(self, codec: str) -> float | None:
        sent = self.codecs[codec].step_mean("wire_bytes")
        if "none" not in self.codecs or sent == 0:
            return None
        return self.codecs["none"].step_mean("wire_bytes") / sent

    def paired(self, codec: str, baseline: str) -> dict[int, float]:
        """Final accuracy minus the baseline's, for each seed that both have."""
        if codec not in self.codecs or baseline not in self.codecs:
            return {}
        other = {run.seed: run.accuracy for run in self.codecs[baseline].runs}
        runs = self.codecs[codec].runs
        return {run.seed: run.accuracy - other[run.seed] for run in runs if run.seed in other}

    def accuracy_change(self, codec: str, baseline: str) -> float:
        """Mean over the seeds that both have; where there are none, difference of the means."""
        pairs = self.paired(codec, baseline)
        if pairs:
            return statistics.fmean(pairs.values())
        return self.codecs[codec].accuracy.mean - self.codecs[baseline].accuracy.mean

    def pareto_front(self) -> list[str]:
        """Of few bytes and high accuracy, by the means."""
        codecs = self.codecs.items()
        return pareto_front({c: (r.step_mean("wire_bytes"), r.accuracy.mean) for c, r in codecs})

    def feedback_pairs(self) -> list[tuple[str, str]]:
        """(spec without feedback, the same with it), where both were trained."""
        return [(spec, spec + "+ef") for spec in self.codecs if spec + "+ef" in self.codecs]

    @property
    def tells_losses(self) -> bool:
        """Whether loss can be drawn against bytes on a logarithmic axis."""
        return all(
            r.loss is not None and r.step_mean("wire_bytes") > 0 for r in self.codecs.values()
        )

    def epoch_counts(self) -> set[int]:
        return {run.epochs[-1].epoch for codec in self.codecs.values() for run in codec.runs}


def trainings(found: list[records.Record]) -> list[Training]:
    """Groups by setting, codec and seed."""
    settings = _grouped(
        records.select(found, records.TrainRecord),
        lambda r: (r.model or "", r.learning_rate or 0.0, r.ranks, r.link),
    )
    return [
        Training(model or None, learning_rate or None, ranks, link, _codecs(group))
        for (model, learning_rate, ranks, link), group in settings.items()
    ]


def differ_in_rate_alone(found: list[Training]) -> bool:
    """Whether they are of one model, ranks and link, and tell losses and learning rates."""
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
    """Names that no other beats (as cheap and as good, and strictly better in one of both).

    By rising cost, so gains rise too.
    """

    def beaten(name: str) -> bool:
        cost, gain = costs_and_gains[name]
        return any(
            c <= cost and g >= gain and (c, g) != (cost, gain) for c, g in costs_and_gains.values()
        )

    front = [name for name in costs_and_gains if not beaten(name)]
    return sorted(front, key=lambda name: costs_and_gains[name])
