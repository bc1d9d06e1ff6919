"""Loss by bytes for a single model: each codec at its best learning rate, with the other rates."""

import dataclasses
import statistics

import summary
from words import in_words


@dataclasses.dataclass(frozen=True)
class Point:
    """A codec at its best learning rate."""

    codec: str
    sent: float  # bytes
    loss: summary.Spread
    label: str
    rate: float | None
    others: list[float]  # losses at other rates


def points(trainings: list[summary.Training], told: str) -> list[Point]:
    """Returns points by increasing bytes. `told` is "loss" or "test_loss"."""
    codecs = {codec for one in trainings for codec in one.codecs}
    found = [_point(codec, trainings, told) for codec in codecs]
    return sorted(found, key=lambda point: (point.sent, point.codec))


def _point(codec: str, trainings: list[summary.Training], told: str) -> Point:
    """Chooses the best rate among the rates with most seeds."""
    tried = [(one.codecs[codec], one.learning_rate) for one in trainings if codec in one.codecs]
    seeds = max(len(runs.runs) for runs, _ in tried)
    most = [(runs, rate) for runs, rate in tried if len(runs.runs) == seeds]
    best, best_rate = min(most, key=lambda pair: pair[0].ended(told).mean)
    loss = best.ended(told)
    others = [loss.mean + _above(best, runs, told) for runs, _ in tried if runs is not best]
    label = f"{in_words(codec)}, rate {best_rate:g}" if len(trainings) > 1 else in_words(codec)
    if others:
        label += f", best of {len(tried)}"
    every = max(len(runs.runs) for one in trainings for runs in one.codecs.values())
    if seeds < every:
        label += f" ({seeds} of {every} seeds)"
    return Point(codec, best.step_mean("wire_bytes"), loss, label, best_rate, others)


def _above(best: summary.CodecRuns, other: summary.CodecRuns, told: str) -> float:
    """Compares losses by common seeds; without common seeds, compares the means."""
    own = {run.seed: getattr(run.last, told) for run in best.runs}
    pairs = [getattr(run.last, told) - own[run.seed] for run in other.runs if run.seed in own]
    means = other.ended(told).mean - best.ended(told).mean
    return statistics.fmean(pairs) if pairs else means
