"""The training part of a report: the main table, and conclusions in plain sentences."""

import functools
import statistics
import typing

import loss_figure
import page
import records
import summary
import train_figures
import units
from page import Part, Picture, Section, Table

CLEAR_LOSS = 0.005  # accuracy; half a percentage point
LOSS_CAPTION = (
    "Each point is a codec; down and to the left is better, and bars are one standard deviation "
    "over seeds. The loss is the training's own, the mean of the last epoch's batches."
)


def sections(found: list[records.Record]) -> list[Section]:
    return [_section(training) for training in summary.trainings(found)]


def _section(training: summary.Training) -> Section:
    parts = [
        _headline(training),
        *_pictures(training),
        *_feedback_table(training),
        *_paired_parts(training),
    ]
    model = f"{training.model}, " if training.model else ""
    rate = f"rate {training.learning_rate:g}, " if training.learning_rate else ""
    heading = f"Training: {model}{rate}{training.ranks} ranks, link {training.link}"
    return Section(heading, [*_verdicts(training), *_warnings(training)], parts)


def _headline(training: summary.Training) -> Table:
    targets = {f"target{i}": target for i, target in enumerate(summary.TARGETS)}
    times = ", ".join(f"to {100 * target:g}\u00a0%={name}" for name, target in targets.items())
    return page.table(
        "Accuracy, time and bytes",
        f"codec=codec, test accuracy=accuracy, {times}, bytes per step=wire_bytes|B, "
        "compression=compression|x, step=step_seconds|s, speed vs none=none|x, speed vs bf16=bf16|x",
        training.codecs.values(),
        "Accuracy: of the last epoch, mean ± standard deviation over seeds. To 80 %: wall-clock "
        "time at the end of the first epoch that reaches it (n/m: only n of m seeds do; —: no seed "
        "does). Bytes: sent by one rank. Compression: bytes of none / bytes of the codec. Speed: "
        "wall-clock time of an epoch, baseline / codec.",
        accuracy=lambda runs: accuracy_text(runs.accuracy),
        **{name: functools.partial(time_text, target=one) for name, one in targets.items()},
        wire_bytes=lambda runs: runs.step_mean("wire_bytes"),
        compression=lambda runs: training.compression(runs.codec),
        step_seconds=lambda runs: runs.step_mean("step_seconds"),
        none=lambda runs: training.speedup(runs.codec, "none"),
        bf16=lambda runs: training.speedup(runs.codec, "bf16"),
    )


def accuracy_text(spread: summary.Spread) -> str:
    if spread.count < 2:
        return units.percent(spread.mean)
    return f"{100 * spread.mean:.2f} ± {100 * spread.deviation:.2f} %"


def time_text(runs: summary.CodecRuns, target: float) -> str | None:
    """The mean over all runs with this accuracy, and their number if some runs miss the target."""
    times = runs.seconds_to(target)
    if not times:
        return None
    share = "" if len(times) == len(runs.runs) else f" ({len(times)}/{len(runs.runs)})"
    return units.seconds(statistics.fmean(times)) + share


def _verdicts(training: summary.Training) -> list[str]:
    """States for each codec if training is faster than with the faster of `none` and `bf16`."""
    plain = [codec for codec in ("none", "bf16") if codec in training.codecs]
    codecs = [codec for codec in training.codecs if codec not in plain]
    if not plain:
        return []
    baseline = min(plain, key=lambda codec: training.codecs[codec].epoch_seconds)
    sentences = [_verdict(training, "bf16", "none")] if len(plain) == 2 else []
    sentences += [_verdict(training, codec, baseline) for codec in codecs]
    if codecs and not any(_is_faster(training, codec, baseline) for codec in codecs):
        setting = f"{training.ranks} ranks, link {training.link}"
        lead = f"Compression does not pay here ({setting}): no codec is faster than {baseline}."
        if any(training.busy_factor(codec, baseline) for codec in codecs):
            lead = f"Machine too busy to tell if compression pays here ({setting})."
        sentences.insert(0, lead)
    return sentences


def _is_faster(training: summary.Training, codec: str, baseline: str) -> bool:
    clear = (training.speedup(codec, baseline) or 0.0) >= summary.CLEAR_FACTOR
    return clear and not training.busy_factor(codec, baseline)


def _verdict(training: summary.Training, codec: str, baseline: str) -> str:
    speed = units.ratio(training.speedup(codec, baseline))
    change = training.accuracy_change(codec, baseline)
    what = f"{speed} the speed of {baseline}, accuracy {units.points(change)} points"
    busy = training.busy_factor(codec, baseline)
    if busy:
        noise = f"{units.ratio(busy)}, and all codecs compute the same"
        return f"{codec}: machine too busy to tell: {what}; compute times differ by {noise}."
    if not _is_faster(training, codec, baseline):
        return f"{codec} does not pay here: {what}."
    if change < -CLEAR_LOSS:
        return f"{codec} buys speed with accuracy: {what}."
    return f"{codec} pays: {what}."


def _warnings(training: summary.Training) -> list[str]:
    warnings, every = [], [run for runs in training.codecs.values() for run in runs.runs]
    counts = sorted({run.last.epoch for run in every})
    if len(counts) > 1:
        warnings.append(
            f"Careful: the runs have different lengths ({counts[0]} to {counts[-1]} epochs), so "
            "their last epochs are not alike."
        )
    if len(every) == len(training.codecs):
        warnings.append("One seed: differences of a few tenths of a point are noise.")
    return warnings


def _pictures(training: summary.Training) -> list[Picture]:
    def picture(name: str, heading: str, caption: str, draw: typing.Callable) -> Picture:
        return Picture(name, heading, caption, functools.partial(draw, training))

    figures, pictures = train_figures, []
    if all(runs.step_mean("wire_bytes") > 0 for runs in training.codecs.values()):  # log axis
        name, heading = "accuracy-bytes", "Accuracy against bytes sent"
        pictures = [picture(name, heading, _bytes_caption(training), figures.accuracy_bytes)]
    if training.tells_losses:
        draw = functools.partial(loss_figure.draw, [training])
        pictures += [Picture("loss-bytes", "Loss against bytes sent", LOSS_CAPTION, draw)]
    name, heading = "accuracy-time", "Accuracy against wall-clock time"
    pictures += [picture(name, heading, _time_caption(training), figures.accuracy_time)]
    name, heading = "step-time", "Where the time of a step goes"
    return [*pictures, picture(name, heading, _step_caption(training), figures.step_time)]


def _bytes_caption(training: summary.Training) -> str:
    front = ", ".join(training.pareto_front())
    return (
        "Each point is a codec after its last epoch; up and to the left is better, and bars are "
        "one standard deviation over seeds. Ringed, on the dotted line, is the Pareto front: "
        f"{front}. Every other codec sends more, or is less accurate, than a codec on the front. "
        "Differences smaller than the bars are noise."
    )


def _time_caption(training: summary.Training) -> str:
    said = "A marker is the end of an epoch; a band is one standard deviation over seeds. "
    reached = [t for t in summary.TARGETS if any(r.seconds_to(t) for r in training.codecs.values())]
    if not reached:
        return said
    times = {codec: runs.seconds_to(reached[-1]) for codec, runs in training.codecs.items()}
    means = {codec: statistics.fmean(times[codec]) for codec in times if times[codec]}
    first = min(means, key=lambda codec: means[codec])
    said += f"First to {100 * reached[-1]:g} % is {first}, after {units.seconds(means[first])}"
    if "none" in means and first != "none":
        said += f"; none takes {units.seconds(means['none'])}"
    return said + "."


def _step_caption(training: summary.Training) -> str:
    shares = [f"{codec} {100 * one.exposed_share:.0f} %" for codec, one in training.codecs.items()]
    return (
        "Upper bar: the step as it passes on the clock. Dark is communication that computing did "
        f"not hide: {', '.join(shares)} of the step. Lower bar: all the work of communication, how "
        "much of it was hidden, behind computing or (encode, wire and decode run at once) behind "
        "each other."
    )


def _feedback_table(training: summary.Training) -> list[Table]:
    """The pairs of specs without and with feedback that were both trained."""
    rows = []
    for spec, runs in training.codecs.items():
        if fed := training.codecs.get(spec + "+ef"):
            gains = training.paired(fed.codec, spec)
            accuracies = [accuracy_text(one.accuracy) for one in (runs, fed)]
            rows.append([spec, *accuracies, _points_text(gains), str(len(gains))])
    columns = ["codec", "without", "with feedback", "gain (points)", "pairs"]
    note = (
        "Gain: accuracy with minus without, mean ± standard deviation over pairs of the same seed."
    )
    return [Table("What error feedback brings", columns, rows, note)] if rows else []


def _points_text(differences: dict[int, float]) -> str:
    if not differences:
        return units.ABSENT
    spread = summary.Spread.of(differences.values())
    if spread.count < 2:
        return units.points(spread.mean)
    return f"{units.points(spread.mean)} ± {100 * spread.deviation:.2f}"


def _paired_parts(training: summary.Training) -> list[Part]:
    """Differences to `none` for common seeds, without the effect of the seed."""
    pairs = {codec: training.paired(codec, "none") for codec in training.codecs}
    others = {codec: found for codec, found in pairs.items() if codec != "none"}
    if not others or max(map(len, pairs.values())) < 2:
        return []
    rows = []
    for codec, found in others.items():
        ends = [units.points(choose(found.values())) for choose in (min, max) if found]
        ends = ends or [units.ABSENT] * 2
        rows.append([codec, _points_text(found), *ends, str(len(found))])
    columns = ["codec", "difference (points)", "worst", "best", "pairs"]
    note = "Accuracy of the last epoch minus that of none, mean ± standard deviation over pairs."
    table = Table("Accuracy against none, same seed", columns, rows, note)
    picture = Picture(
        "accuracy-paired",
        "Accuracy against none, same seed: each pair",
        "Each dot is one seed, trained with the codec and with none; the bar is their mean. Left "
        "of the line the codec is worse.",
        functools.partial(train_figures.paired, training),
    )
    return [table, picture]
