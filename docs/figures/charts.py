"""The charts: the time of an all-reduce, the time of a step, the loss and the error of codecs."""

import math
import typing

import error_totals  # of bench/report
import results_tables as tables
from svg import Axis, Drawing, axes

MACHINES = 8
BYTES_PER_VALUE = {"none": 4.0, "int8": 1.016, "int4": 0.531}
CODEC_COLOURS = {
    "none": "grey",
    "bf16": "blue",
    "int8": "orange",
    "int4": "green",
    "int4+ef": "green",
    "topk:density=0.01+ef": "purple",
}


def allreduce_seconds(
    parameters: float, codec: str, bits_per_second: float, machines: int = MACHINES
) -> float:
    """2 (n - 1) / n * bytes * 8 / rate: each machine sends and receives at the full rate."""
    sent = 2 * (machines - 1) / machines * BYTES_PER_VALUE[codec] * parameters
    return 8 * sent / bits_per_second


def link_speed() -> Drawing:
    drawing = Drawing(
        860,
        430,
        "Is my link slow enough?",
        "The time to all-reduce the gradients of 10 million, 100 million and 1 billion parameters"
        f" among {MACHINES} machines against the rate of the link, uncompressed, with int8 and"
        " with int4.",
    )
    drawing.heading(
        "Is my link slow enough?",
        f"Time to all-reduce the gradients of {MACHINES} machines, computed. Compression helps if"
        " the grey line lies above",
        "the time of your backward pass.",
    )
    sizes = ((1e7, "10 million parameters"), (1e8, "100 million"), (1e9, "1 billion"))
    for column, (parameters, heading) in enumerate(sizes):
        _link_panel(drawing, 70 + 264 * column, column == 0, parameters, heading)
    drawing.text(
        430, 418, "link rate of each machine, Gbit/s (logarithmic)", size=13, anchor="middle"
    )
    return drawing


def _link_panel(
    drawing: Drawing, left: float, labelled: bool, parameters: float, heading: str
) -> None:
    x = Axis(1e8, 1e11, left, left + 232, logarithmic=True)
    y = Axis(1e-3, 1e3, 376, 106, logarithmic=True)
    seconds = [(1e-3, "1 ms"), (1e-2, "10 ms"), (0.1, "0.1 s"), (1.0, "1 s"), (10.0, "10 s")]
    seconds += [(100.0, "100 s"), (1000.0, "1000 s")]
    ticks = seconds if labelled else [(value, "") for value, _ in seconds]
    axes(drawing, x, y, [(1e8, "0.1"), (1e9, "1"), (1e10, "10"), (1e11, "100")], ticks)
    drawing.text(left + 116, 94, heading, size=14, bold=True, anchor="middle")
    slope = math.degrees(math.atan2(y(1e-3) - y(1.0), x(1e11) - x(1e8)))
    for codec, words, shift in (
        ("none", "uncompressed", -7),
        ("int8", "int8", -6),
        ("int4", "int4", 16),
    ):
        ends = [(rate, allreduce_seconds(parameters, codec, rate)) for rate in (1e8, 1e11)]
        shown = [(x(rate), y(max(1e-3, s))) for rate, s in ends]
        if ends[1][1] < 1e-3:  # the line leaves the panel at one millisecond
            shown[1] = (x(1e8 * ends[0][1] / 1e-3), y(1e-3))
        colour = CODEC_COLOURS[codec]
        drawing.line(shown, colour=colour, width=2.5)
        middle = (x(3e9), y(allreduce_seconds(parameters, codec, 3e9)) + shift)
        drawing.text(
            *middle, words, size=12, colour=colour, anchor="middle", bold=True, angle=slope
        )


def step_time() -> Drawing:
    drawing = Drawing(
        860,
        316,
        "Time per training step over a link of 1 Gbit/s",
        "Bars of the step time without compression and with four codecs, in a part for computing"
        " and a part for waiting on the network, with the test accuracy and the sent bytes.",
    )
    [training] = tables.training(tables.FASHION)
    rows = (
        ("none", "uncompressed"),
        ("bf16", "bf16"),
        ("int8", "int8"),
        ("int4+ef", "int4+ef"),
        ("topk:density=0.01+ef", "topk 1 % +ef"),
    )
    drawing.heading(
        "Time per training step over a link of 1 Gbit/s",
        "4 ranks, perceptron on Fashion-MNIST, emulated link (50 µs), six seeds. Shorter is better.",
    )
    for at, words in ((560, "step"), (640, "test accuracy"), (770, "sent bytes")):
        drawing.text(at, 78, words, size=13, colour="quiet")
    x = Axis(0, 0.0265, 125, 535)
    for row, (codec, words) in enumerate(rows):
        runs, top = training.codecs[codec], 90 + 38 * row
        compute, whole = runs.step_mean("compute_seconds"), runs.step_mean("step_seconds")
        colour = CODEC_COLOURS[codec]
        drawing.text(116, top + 18, words, size=13, anchor="end", colour=colour, bold=True)
        drawing.box(x(0), top, x(compute) - x(0), 26, colour=colour, opacity=0.4)
        drawing.box(x(compute), top, x(whole) - x(compute), 26, colour=colour)
        accuracy = runs.accuracy
        drawing.text(560, top + 18, f"{1000 * whole:.1f} ms", size=13, bold=True)
        spread = f"{100 * accuracy.mean:.2f} ± {100 * accuracy.deviation:.2f} %"
        drawing.text(640, top + 18, spread, size=13)
        drawing.text(770, top + 18, f"{runs.step_mean('wire_bytes') / 1024:,.0f} KiB", size=13)
    drawing.text(x(0.004), 300, "pale: computing", size=12, colour="quiet", anchor="middle")
    drawing.text(
        x(0.0175), 300, "strong: waiting for the network", size=12, colour="quiet", anchor="middle"
    )
    return drawing


class Label(typing.NamedTuple):
    """The words beside a point; `dx` and `dy` are pixels from its centre."""

    words: str
    dx: float = 10
    dy: float = 4
    anchor: str = "start"


LOSS_LABELS = {
    "none": Label("AdamW, uncompressed", -4, -20, "end"),
    "adamw:blocktopk:density=0.01+ef": Label("blocktopk 1 %", -24, 34),
    "adamw:blocktopk:density=0.03+ef": Label("blocktopk 3 %", 8, 20),
    "adamw:hadamard:bits=1+ef": Label("hadamard 1 bit", 8, -10),
    "onebit-adam=400": Label("1-bit Adam (400 uncompressed steps)", 20, 28, "middle"),
    "torch:powersgd=4": Label("PyTorch's PowerSGD hook, rank 4"),
    "torch:powersgd=4,start=200": Label("PowerSGD (200 uncompressed steps)"),
    "muon": Label("Muon, uncompressed", -4, 26, "end"),
    "muon,momentum=0.7:blocktopk:density=0.01+ef": Label("blocktopk 1 %", -22, -12),
    "muon:blocktopk:density=0.03+ef": Label("blocktopk 3 %", -12, 26, "middle"),
    "muon:hadamard:bits=1+ef": Label("hadamard 1 bit", 0, -18, "middle"),
    "muon,momentum=0.9:hadamard:bits=2+ef": Label("hadamard 2 bits", 12, 4),
}


def loss() -> Drawing:
    drawing = Drawing(
        860,
        500,
        "Loss against sent bytes",
        "The test loss of a small GPT after 2,000 steps against the bytes that a rank sends per"
        " step: AdamW and Muon, uncompressed and with five codecs, PowerSGD and 1-bit Adam.",
    )
    points = tables.optimizer_points()
    x = Axis(2**14, 2**22, 70, 830, logarithmic=True)
    y = Axis(1.33, 1.56, 440, 92)
    drawing.heading(
        "Test loss of a small GPT after 2,000 steps",
        "Lower and further left is better. Blue: CompressedAdamW. Orange: CompressedMuon.",
        "Best of at least three learning rates; bars: one standard deviation of three seeds.",
    )
    sizes = [(2.0**k, f"{2 ** (k - 10)} KiB" if k < 20 else f"{2 ** (k - 20)} MiB")
             for k in range(14, 23, 2)]  # fmt: skip
    losses = [(1.35, "1.35"), (1.4, "1.40"), (1.45, "1.45"), (1.5, "1.50"), (1.55, "1.55")]
    axes(drawing, x, y, sizes, losses)
    drawing.text(450, 484, "bytes that a rank sends per step (logarithmic)", size=13,
                 anchor="middle")  # fmt: skip
    for point in points:
        family = point.codec.split(":")[0].split(",")[0]
        colour = {"muon": "orange", "adamw": "blue", "none": "blue"}.get(family, "grey")
        shape = {"orange": "diamond", "blue": "circle"}.get(colour, "square")
        at = (x(point.sent), y(point.loss.mean))
        if point.codec in ("none", "muon"):
            drawing.line([(x.start, at[1]), (x.end, at[1])], colour=colour, width=1, dashes="6 5")
        deviation = point.loss.known_deviation or 0.0
        ends = [(at[0], y(point.loss.mean + sign * deviation)) for sign in (1, -1)]
        drawing.line(ends, colour=colour)
        drawing.marker(*at, shape, colour)
        _label(drawing, at, LOSS_LABELS[point.codec], colour)
    return drawing


def _label(drawing: Drawing, at: tuple[float, float], label: Label, colour: str) -> None:
    place = at[0] + label.dx, at[1] + label.dy
    drawing.text(*place, label.words, size=12, colour=colour, anchor=label.anchor)


ERROR_LABELS = {
    "blocktopk:density=0.00025": Label("blocktopk 0.025 %", 10, 2),
    "topk:density=0.001": Label("topk 0.1 %"),
    "blocktopk:density=0.0025": Label("blocktopk 0.25 %", 10, 12),
    "blocktopk:density=0.01": Label("blocktopk 1 %, signs", -4, 24, "end"),
    "blocktopk:density=0.01,values=int4": Label("int4 values", 22, -12, "end"),
    "blocktopk:density=0.01,values=bf16": Label("bf16 values", -14, -12),
    "blocktopk:density=0.025": Label("blocktopk 2.5 %, signs", 0, 22, "middle"),
    "topk:density=0.01,values=int8": Label("topk 1 %, int8 values", 4, 24, "end"),
    "topk:density=0.01,values=bf16": Label("bf16", 0, 24, "middle"),
    "topk:density=0.01": Label("float32", 0, 24, "middle"),
    "topk:density=0.1": Label("topk 10 %"),
    "hadamard:bits=1": Label("hadamard 1 bit", 10, 3),
    "hadamard": Label("2 bits", -10, 6, "end"),
    "hadamard:bits=3": Label("3 bits", -10, 6, "end"),
    "hadamard:bits=4": Label("4 bits", -10, 8, "end"),
    "int4": Label("int4", 4, 22, "middle"),
    "int4:rounding=stochastic": Label("int4, stochastic", 10, 0),
    "int8": Label("int8", -10, 8, "end"),
    "int8:rounding=stochastic": Label("int8, stochastic", -10, 2, "end"),
    "intsum": Label("intsum 8 bits", 10, 10),
    "intsum:rounding=stochastic": Label("stochastic", 10, -2),
    "intsum:lanes=16": Label("intsum 16 bits", -10, -3, "end"),
    "intsum:lanes=32": Label("intsum 32 bits", -10, 4, "end"),
    "bf16": Label("bf16", -10, 8, "end"),
    "bf16:rounding=stochastic": Label("bf16, stochastic", -10, 0, "end"),
    "f16": Label("f16", -10, 14, "end"),
}
FAMILIES = {
    "bf16": ("blue", "square"),
    "f16": ("blue", "square"),
    "int8": ("orange", "diamond"),
    "int4": ("orange", "diamond"),
    "hadamard": ("purple", "triangle"),
    "topk": ("grey", "circle"),
    "blocktopk": ("green", "circle"),
    "intsum": ("yellow", "square"),
}


def errors() -> Drawing:
    drawing = Drawing(
        860,
        490,
        "Relative error against bits per value",
        "The relative error of one encoding without error feedback against the bits per value,"
        " for 26 codecs on the gradients of a perceptron. Two panels: sparse codecs below one bit,"
        " and codecs of one bit and more.",
    )
    [found] = error_totals.losses(tables.load("codecs-errors.json")).values()
    count = max(one.count for one in found)
    note = f"Gradients of a perceptron on Fashion-MNIST: {count:,} values. Lower and further left"
    heading = "Relative error of one encoding, without error feedback"
    drawing.heading(heading, f"{note} is better.")
    panels = [
        (Axis(2**-5, 2**-0.5, 70, 400, True), Axis(0.8, 1.0, 430, 96), False),
        (Axis(2**-0.25, 2**5.3, 490, 846, True), Axis(1e-7, 1.0, 430, 96, True), True),
    ]
    for x, y, fine in panels:
        bits = [(2.0**k, f"{2**k}" if fine else f"1/{2**-k}")
                for k in (range(6) if fine else range(-5, 0))]  # fmt: skip
        shares = [10.0**k for k in range(-7, 1)] if fine else [0.8, 0.85, 0.9, 0.95, 1.0]
        percents = [f"{100 * share:.5f}".rstrip("0").rstrip(".") + " %" for share in shares]
        axes(drawing, x, y, bits, list(zip(shares, percents, strict=True)))
        kind = "one bit and more: logarithmic error" if fine else "below one bit: linear error"
        drawing.text((x.start + x.end) / 2, 84, kind, size=13, bold=True, anchor="middle")
        for one in found:
            if one.energy > 0 and (one.bits >= 1) == fine:
                colour, shape = FAMILIES[one.codec.split(":")[0]]
                at = x(one.bits), y(math.sqrt(one.energy))
                drawing.marker(*at, shape, colour, 5)
                _label(drawing, at, ERROR_LABELS[one.codec], colour)
    drawing.text(430, 474, "bits per value (logarithmic)", size=13, anchor="middle")
    return drawing
