"""Tests of the report program: numbers, files and errors. Requires a python3 with matplotlib."""

import contextlib
import importlib.util
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import typing
import unittest
import xml.etree.ElementTree as xml

REPORT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "report" / "tersor_report.py"
sys.path.insert(0, str(REPORT.parent))
sys.dont_write_bytecode = True

import loss_points  # noqa: E402
import palette  # noqa: E402
import records  # noqa: E402
import summary  # noqa: E402
import units  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def train_record(**changes: typing.Any) -> dict[str, typing.Any]:
    record = {
        "benchmark": "train", "codec": "none", "seed": 1, "ranks": 4, "link": "1Gbit,50us",
        "epoch": 1, "step_seconds": 0.04, "seconds": 10.0, "accuracy": 0.81, "loss": 0.5,
        "wire_bytes": 4096.0, "compute_seconds": 0.01, "encode_seconds": 0.001,
        "wire_seconds": 0.03, "decode_seconds": 0.001, "exposed_seconds": 0.024,
    }  # fmt: skip
    return {**record, **changes}


def training(codec: str, accuracies: list[float], **changes: typing.Any) -> list[dict]:
    """A training run. `epoch_seconds` is the duration of an epoch."""
    epoch_seconds = changes.pop("epoch_seconds", 10.0)
    return [
        train_record(codec=codec, epoch=i, seconds=i * epoch_seconds, accuracy=accuracy, **changes)
        for i, accuracy in enumerate(accuracies, start=1)
    ]


def sample_trainings() -> list[dict]:
    """Two seeds each of none, bf16 (2x faster), topk+ef (4x faster) and topk without feedback."""
    runs: list[dict] = []
    for seed, shift in ((1, 0.0), (2, 0.01)):
        runs += training("none", [0.81, 0.86, 0.88 + shift], seed=seed)
        runs += training(
            "bf16", [0.80, 0.86, 0.88 + shift], seed=seed, epoch_seconds=5.0, wire_bytes=2048.0
        )
        fast = {"seed": seed, "epoch_seconds": 2.5, "wire_bytes": 128.0}
        runs += training("topk:density=0.01+ef", [0.79, 0.84, 0.865 + shift], **fast)
        runs += training("topk:density=0.01", [0.70, 0.80, 0.84 + shift], **fast)
    return runs


def allreduce_record(codec: str, count: int, seconds: float) -> dict[str, typing.Any]:
    algbw = 4 * count / seconds / 1e9
    return {
        "benchmark": "allreduce", "codec": codec, "algorithm": "two-shot", "transport": "inproc",
        "link": "1Gbit,50us", "ranks": 4, "dtype": "f32", "count": count, "seconds": seconds,
        "algbw": algbw, "busbw": 1.5 * algbw, "wire_bytes": 6 * count, "relative_error": None,
        "identical": True,
    }  # fmt: skip


def predict_record(ranks: int, codec: str, seconds: float) -> dict[str, typing.Any]:
    return {
        "benchmark": "predict", "codec": codec, "algorithm": "two-shot", "link": "1Gbit,50us",
        "ranks": ranks, "hosts": ranks, "dtype": "f32", "count": 1024, "seconds": seconds,
        "busbw": 0.1, "wire_bytes": 6 * 1024,
    }  # fmt: skip


def backward_record(hook: str, seconds: float, **changes: typing.Any) -> dict[str, typing.Any]:
    record = {
        "benchmark": "backward", "codec": hook, "transport": "gloo", "link": "1gbit", "ranks": 2,
        "dtype": "f32", "count": 2**24, "rows": 2, "seconds": seconds, "compute_seconds": 0.02,
        "wire_bytes": 2**26, "wire_bytes_are": "computed", "interface_bytes": None,
        "relative_error": 0.0,
    }  # fmt: skip
    return {**record, **changes}


def error_record(codec: str, **changes: typing.Any) -> dict[str, typing.Any]:
    record = {
        "benchmark": "codecs", "codec": codec, "operation": "error", "dtype": "f32", "count": 100,
        "data": "g.safetensors", "tensor": "w", "ranks": 1, "payload_bytes": 100, "bits": 8.0,
        "energy_lost": 0.25, "relative_error": 0.5, "norm": 2.0,
    }  # fmt: skip
    return {**record, **changes}


def allocate_record(codec: str, **changes: typing.Any) -> dict[str, typing.Any]:
    record = {
        "benchmark": "allocate", "codec": codec, "data": "g.npz", "parameter": None, "count": 1000,
        "payload_bytes": 1000, "energy": 4.0, "energy_lost": 1.0, "chosen": False,
    }  # fmt: skip
    return {**record, **changes}


def sample_allocation() -> list[dict]:
    """Two parameters with two codecs each. The budget equals the bytes of int8 for all."""
    long, short = {"parameter": "w", "count": 900}, {"parameter": "b", "count": 100}
    return [
        allocate_record("int8", **long, payload_bytes=900, energy_lost=0.1, chosen=True),
        allocate_record("int4", **long, payload_bytes=450, energy_lost=0.9),
        allocate_record("int8", **short, payload_bytes=100, energy_lost=0.9),
        allocate_record("int4", **short, payload_bytes=50, energy_lost=0.1, chosen=True),
        allocate_record("f16", **short, payload_bytes=200, energy_lost=None),
        allocate_record("allocated", payload_bytes=950, energy_lost=0.2, chosen=True),
        allocate_record("int8"),
        allocate_record("allocated", payload_bytes=950, energy_lost=0.2),
        allocate_record("int4", payload_bytes=500),
        allocate_record("allocated", payload_bytes=500, energy_lost=0.8),
        allocate_record("tiny", payload_bytes=10, energy_lost=3.0),
    ]


def codec_record(ratio: float | None, **changes: typing.Any) -> dict[str, typing.Any]:
    record = {
        "benchmark": "codecs", "codec": "int8", "operation": "encode", "dtype": "f32",
        "count": 64 * 2**20, "isa": "AVX2", "threads": 2, "seconds": 0.01, "baseline": "read",
        "baseline_seconds": 0.009, "ratio": ratio, "payload_bytes": 2**26, "relative_error": 0.004,
    }  # fmt: skip
    return {**record, **changes}


class Folder(unittest.TestCase):
    """A fresh folder per test for runs of the program."""

    def setUp(self) -> None:
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def write(self, content: typing.Any, name: str = "in.json") -> pathlib.Path:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def run_report(self, *arguments: typing.Any) -> subprocess.CompletedProcess:
        command = [sys.executable, "-B", str(REPORT), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def load(self, content: typing.Any) -> list[records.Record]:
        return records.load([self.write(content)])

    def training(self, content: list[dict]) -> summary.Training:
        (only,) = summary.trainings(records.select(self.load(content), records.TrainRecord))
        return only


class Numbers(Folder):
    def test_time_to_accuracy_ends_with_the_first_sufficient_epoch(self) -> None:
        runs = self.training(training("none", [0.79, 0.80, 0.84, 0.80, 0.86])).codecs["none"]
        self.assertEqual(runs.seconds_to(0.80), [20.0])
        self.assertEqual(runs.seconds_to(0.85), [50.0])
        self.assertEqual(runs.seconds_to(0.87), [])

    def test_only_seeds_with_the_accuracy_count(self) -> None:
        both = training("none", [0.80, 0.88]) + training("none", [0.80, 0.84], seed=2)
        runs = self.training(both).codecs["none"]
        self.assertEqual(runs.seconds_to(0.88), [20.0])
        self.assertEqual(len(runs.runs), 2)

    def test_accuracy_uses_the_last_epoch_in_any_record_order(self) -> None:
        backwards = training("none", [0.9, 0.7]) + training("none", [0.9, 0.8], seed=2)
        spread = self.training(backwards[::-1]).codecs["none"].accuracy
        self.assertAlmostEqual(spread.mean, 0.75)
        self.assertAlmostEqual(spread.deviation, 0.1 / 2**0.5)

    def test_speed_and_compression_are_ratios_of_means(self) -> None:
        found = self.training(sample_trainings())
        self.assertAlmostEqual(found.speedup("topk:density=0.01+ef", "none"), 4.0)
        self.assertAlmostEqual(found.speedup("topk:density=0.01+ef", "bf16"), 2.0)
        self.assertAlmostEqual(found.compression("topk:density=0.01+ef"), 32.0)
        self.assertIsNone(found.speedup("none", "int8"))

    def test_pairs_use_the_same_seed(self) -> None:
        found = self.training(
            training("none", [0.88], seed=1)
            + training("none", [0.90], seed=2)
            + training("int8", [0.89], seed=2)
            + training("int8", [0.50], seed=3)
        )
        self.assertEqual(list(found.paired("int8", "none")), [2])
        self.assertAlmostEqual(found.accuracy_change("int8", "none"), -0.01)

    def test_hidden_time_defaults_to_the_unexposed_time(self) -> None:
        (record,) = self.load([train_record()])
        self.assertAlmostEqual(record.hidden, 0.008)
        (record,) = self.load([train_record(exposed_seconds=1.0)])
        self.assertEqual(record.hidden, 0.0)
        (record,) = self.load([train_record(hidden_seconds=0.002)])
        self.assertEqual(record.hidden, 0.002)

    def test_settings_are_not_mixed(self) -> None:
        mixed = training("none", [0.8]) + training("none", [0.9], link="none")
        found = summary.trainings(records.select(self.load(mixed), records.TrainRecord))
        self.assertEqual([t.codecs["none"].accuracy.mean for t in found], [0.8, 0.9])

    def test_models_are_not_mixed(self) -> None:
        both = training("none", [0.8], model="cnn") + training("none", [0.5], model="gpt")
        found = summary.trainings(records.select(self.load(both), records.TrainRecord))
        self.assertEqual([setting.model for setting in found], ["cnn", "gpt"])

    def test_learning_rates_are_not_mixed(self) -> None:
        both = training("none", [0.8], learning_rate=0.1) + training(
            "none", [0.7], learning_rate=0.2
        )
        found = summary.trainings(records.select(self.load(both), records.TrainRecord))
        self.assertEqual([setting.learning_rate for setting in found], [0.1, 0.2])

    def test_loss_uses_the_last_epoch_if_all_runs_report_it(self) -> None:
        runs = training("none", [0.8], loss=1.0) + training("none", [0.8], loss=2.0, seed=2)
        found = self.training(runs)
        self.assertAlmostEqual(found.codecs["none"].ended("loss").mean, 1.5)
        self.assertTrue(found.tells_losses)
        found = self.training([*runs, *training("int8", [0.8], loss=None)])
        self.assertIsNone(found.codecs["int8"].ended("loss"))
        self.assertFalse(found.tells_losses)

    def test_a_picture_shows_each_codec_at_its_best_rate(self) -> None:
        def points(*runs: tuple[str, float, int, float]) -> list[loss_points.Point]:
            every = [
                training(codec, [0.8], learning_rate=rate, seed=seed, loss=9.0, test_loss=loss)
                for codec, rate, seed, loss in runs
            ]
            found = records.select(self.load(sum(every, [])), records.TrainRecord)
            return loss_points.points(summary.trainings(found), "test_loss")

        seeds = ("none", 0.2, 1, 1.4), ("none", 0.2, 2, 1.6)
        ((none),) = points(("none", 0.1, 1, 1.7), ("none", 0.4, 1, 1.2), *seeds)
        self.assertEqual(none.label, "none, rate 0.2, best of 3")  # of the rates with both seeds
        self.assertAlmostEqual(none.loss.mean, 1.5)
        self.assertEqual([round(loss, 6) for loss in none.others], [1.8, 1.3])  # seed 1
        only, _ = points(("int8", 0.1, 1, 1.7), *seeds)
        self.assertEqual(only.label, "int8, rate 0.1 (1 of 2 seeds)")

    def test_only_learning_rates_may_differ_in_a_picture(self) -> None:
        def may(*changes: dict[str, typing.Any]) -> bool:
            every = [record for one in changes for record in training("none", [0.8], **one)]
            found = summary.trainings(records.select(self.load(every), records.TrainRecord))
            return summary.differ_in_rate_alone(found)

        slow, fast = {"learning_rate": 0.1}, {"learning_rate": 0.2}
        self.assertTrue(may(slow, fast))
        self.assertFalse(may(slow, {**fast, "ranks": 8}))
        self.assertFalse(may(slow, {**fast, "loss": None}))
        self.assertFalse(may(slow, {}))  # `{}` has no rate

    def test_unknown_times_count_as_zero(self) -> None:
        unknown = {"encode_seconds": None, "wire_seconds": None, "decode_seconds": None}
        runs = self.training(training("torch:fp16", [0.8], **unknown)).codecs["torch:fp16"]
        self.assertEqual(runs.step_mean("wire_seconds"), 0.0)
        self.assertTrue(math.isnan(runs.hidden_share))

    def test_units(self) -> None:
        self.assertEqual(units.seconds(0.0123), "12.3 ms")
        self.assertEqual(units.seconds(0.99996), "1.00 s")
        self.assertEqual(units.byte_count(1536 * 1024), "1.50 MiB")
        self.assertEqual(units.value_count(64 * 2**20), "64 Mi")
        self.assertEqual(units.ratio(None), "—")


class ParetoFront(unittest.TestCase):
    def test_excludes_dominated_points(self) -> None:
        points = {"dear": (9, 0.9), "good": (4, 0.9), "poor": (5, 0.8), "small": (1, 0.5)}
        self.assertEqual(summary.pareto_front(points), ["small", "good"])

    def test_keeps_equal_points(self) -> None:
        self.assertEqual(summary.pareto_front({"a": (1, 1), "b": (1, 1)}), ["a", "b"])

    def test_keeps_only_the_best_of_equal_cost(self) -> None:
        self.assertEqual(summary.pareto_front({"a": (1, 0.5), "b": (1, 0.6)}), ["b"])


class Colours(unittest.TestCase):
    def test_codec_colour_does_not_depend_on_other_codecs(self) -> None:
        alone, together = palette.Palette({"int8"}), palette.Palette({"none", "new", "int8"})
        self.assertEqual(alone["int8"], together["int8"])

    def test_unlisted_codecs_differ_in_colour_or_marker(self) -> None:
        specs = {f"new:a={i}" for i in range(3 * len(palette.SPARE))}
        self.assertEqual(len({palette.Palette(specs)[spec] for spec in specs}), len(specs))

    def test_colours_are_unique(self) -> None:
        specs = {*palette.STYLES, "new:a=1", "new:a=2", "other+ef"}
        colours = {palette.Palette(specs)[spec].colour for spec in specs}
        self.assertEqual(len(colours), len(specs))


@unittest.skipUnless(HAS_MATPLOTLIB, "matplotlib is missing: apt-get install python3-matplotlib")
class Page(Folder):
    def report(self, content: typing.Any, *arguments: str) -> tuple[str, list[str]]:
        """Writes the page. Returns the text and the printed paths."""
        result = self.run_report(self.write(content), "-o", self.folder / "out", *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        page = (self.folder / "out" / "index.html").read_text(encoding="utf-8")
        return page, result.stdout.splitlines()

    def test_prints_the_paths_of_written_files(self) -> None:
        everything = sample_trainings()
        everything += [allreduce_record("none", 1024, 1e-3), allreduce_record("int8", 1024, 5e-4)]
        everything += [codec_record(0.9)]
        _, paths = self.report(everything)
        names = [pathlib.Path(path).name for path in paths]
        self.assertEqual(names, [
            "index.html", "accuracy-bytes.svg", "loss-bytes.svg", "accuracy-time.svg",
            "step-time.svg", "accuracy-paired.svg", "allreduce.svg", "codecs.svg",
        ])  # fmt: skip
        for path in paths[1:]:
            self.assertEqual(xml.parse(path).getroot().tag, f"{SVG}svg")

    def pictures(self, content: typing.Any) -> dict[str, xml.Element]:
        """The written pictures by name."""
        _, (_, *paths) = self.report(content)
        return {pathlib.Path(path).stem: xml.parse(path).getroot() for path in paths}

    def test_pictures_label_the_better_direction_and_show_values_on_hover(self) -> None:
        everything = sample_trainings() + sample_allocation()
        everything += [allreduce_record("none", 1024, 1e-3), allreduce_record("int8", 1024, 5e-4)]
        everything += [codec_record(0.9), error_record("int8"), backward_record("none", 0.6)]
        everything += [predict_record(n, "none", n * 1e-3) for n in (2, 4)]
        values = {
            "accuracy-bytes": "none: accuracy 88.50 %, 4.00 KiB per step",
            "loss-bytes": "bf16: loss 0.5000, 2.00 KiB per step",
            "accuracy-time": "bf16, epoch 2: accuracy 86.00 % after 10.0 s",
            "step-time": "none: exposed communication 24.0 ms",
            "accuracy-paired": "topk:density=0.01+ef, seed 2: \u22121.50 points",
            "backward": "none: 600 ms",
            "allreduce": "int8, 4 KiB: 2.00\u00d7",
            "predict": "none, 2 ranks: 2.00 ms (predicted)",
            "codecs": "int8 encode: 0.90 of read",
            "errors": "int8: squared error 2.50e-01, 8.000 bits per value",
            "allocation": "int4: b, 50.0 B, error 2.50e-02",
        }
        pictures = self.pictures(everything)
        self.assertEqual({*pictures}, {*values})
        for name, root in pictures.items():
            with self.subTest(name):
                self.assertIn(values[name], [one.text for one in root.iter(f"{SVG}title")])
                labels = [one.text or "" for one in root.iter(f"{SVG}text")]
                self.assertTrue(any("is better)" in label for label in labels), labels)

    def test_pictures_have_the_colours_of_both_themes(self) -> None:
        page, _ = self.report(sample_trainings())
        self.assertIn("prefers-color-scheme: dark", page)
        for root in self.pictures(sample_trainings()).values():
            text = xml.tostring(root, encoding="unicode")
            style = palette.css()
            self.assertIn(style.replace("\n", ""), text.replace("\n", ""))
            for name, colour in vars(palette.LIGHT).items():
                self.assertNotIn(colour, text.replace(style, ""), name)
            self.assertIn("fill: var(--paper)", text)
            self.assertIn("fill: var(--ink)", text)

    def test_predictions_are_labelled_and_compared_with_measurements(self) -> None:
        predicted = [predict_record(n, c, n * s) for n in (2, 4, 8) for c, s in
                     (("none", 1e-3), ("int8", 3e-4))]  # fmt: skip
        page, paths = self.report(predicted)
        self.assertEqual(pathlib.Path(paths[1]).name, "predict.svg")
        self.assertIn("not measurements", page)
        self.assertIn("Nothing here was measured", page)
        page, _ = self.report([*predicted, allreduce_record("none", 1024, 5e-3)])
        self.assertIn("1 of the points were measured too", page)
        self.assertIn("-20.00 %", page.replace("\u2212", "-"))

    def test_measured_errors_are_drawn(self) -> None:
        page, paths = self.report([error_record("none", energy_lost=0.0), error_record("int8")])
        self.assertEqual([pathlib.Path(path).name for path in paths], ["index.html", "errors.svg"])
        self.assertIn("g.safetensors, 1 tensor, 100 f32", page)

    def test_allocations_are_drawn(self) -> None:
        page, paths = self.report(sample_allocation())
        names = [pathlib.Path(path).name for path in paths]
        self.assertEqual(names, ["index.html", "allocation.svg"])
        self.assertIn("A codec for each parameter: g.npz", page)

    def test_page_loads_no_external_resources(self) -> None:
        page, _ = self.report(sample_trainings())
        self.assertEqual(page.count("<svg"), 5)
        sources = re.findall(r"(?:src|href|srcset)\s*=\s*\"|url\(", page)
        inside = re.findall(r"href=\"#\w+\"|url\(#\w+\)", page)
        self.assertEqual(len(sources), len(inside))  # shapes of the page itself
        self.assertNotRegex(page, r"<script|<link|<img|@import|<metadata")

    def test_sections_without_records_are_omitted(self) -> None:
        page, paths = self.report([codec_record(0.9)])
        self.assertEqual(len(paths), 2)
        self.assertNotIn("Training", page)

    def test_text_from_records_is_escaped(self) -> None:
        page, _ = self.report([codec_record(0.9, codec='"<b>\'')])
        self.assertIn("&lt;b&gt;&#x27; encode: 0.90 of read</title>", page)
        self.assertNotIn("<b>", page)

    def test_dollar_signs_are_not_formulas(self) -> None:
        page, _ = self.report([codec_record(0.9, codec="a$\\x$b")])
        self.assertIn("a$\\x$b", page)

    def test_text_invalid_in_utf8_is_rejected(self) -> None:
        result = self.run_report(self.write([codec_record(0.9, codec="\ud800")]), "--text")
        self.assertIn('field "codec" is', result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_shows_machine_date_and_commit(self) -> None:
        origin = {"machine": "two cores", "date": "2020-02-02", "commit": "abc123"}
        page, _ = self.report([codec_record(0.9, **origin)])
        for fact in origin.values():
            self.assertIn(fact, page)

    def test_single_epoch_and_rank_without_bytes_can_be_drawn(self) -> None:
        self.report([train_record(ranks=1, wire_bytes=0, exposed_seconds=0)])

    def test_picture_for_a_readme(self) -> None:
        path = self.folder / "new" / "picture.png"
        result = self.run_report(self.write(sample_trainings()), "--picture", path)
        self.assertEqual(result.stdout.strip(), str(path), result.stderr)
        self.assertTrue(path.read_bytes().startswith(b"\x89PNG"))
        rates = training("none", [0.8], learning_rate=0.1) + [
            record for seed in (1, 2) for codec in ("none", "int8") for record in
            training(codec, [0.8], learning_rate=0.2, seed=seed)
        ]  # fmt: skip
        for content in ([error_record("int8")], rates):
            result = self.run_report(self.write(content), "--picture", path)
            self.assertEqual(result.returncode, 0, result.stderr)


@unittest.skipUnless(HAS_MATPLOTLIB, "matplotlib is missing: apt-get install python3-matplotlib")
class Text(Folder):
    def text(self, content: typing.Any) -> str:
        result = self.run_report(self.write(content), "--text")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.replace("\u00a0", " ")

    def row(self, text: str, name: str) -> list[str]:
        (line, *_) = [line for line in text.splitlines() if line.split("  ")[0] == name]
        return re.split(r"\s{2,}", line.strip())

    def test_headline_row(self) -> None:
        self.assertEqual(self.row(self.text(sample_trainings()), "topk:density=0.01+ef"), [
            "topk:density=0.01+ef", "87.00 ± 0.71 %", "5.00 s", "7.50 s", "7.50 s (1/2)", "—",
            "128 B", "32.0×", "40.0 ms", "4.00×", "2.00×",
        ])  # fmt: skip

    def test_feedback_and_paired_tables(self) -> None:
        text = self.text(sample_trainings())
        gain = "topk:density=0.01  84.50 ± 0.71 %  87.00 ± 0.71 %   +2.50 ± 0.00      2"
        self.assertIn(gain, text)
        paired = text[text.index("Accuracy against none, same seed") :]
        self.assertEqual(self.row(paired, "bf16")[1:], ["+0.00 ± 0.00", "+0.00", "+0.00", "2"])
        self.assertEqual(self.row(paired, "topk:density=0.01+ef")[1], "−1.50 ± 0.00")

    def test_reports_paying_codecs_and_their_accuracy_cost(self) -> None:
        text = self.text(sample_trainings())
        self.assertIn("bf16 pays: 2.00× the speed of none, accuracy +0.00 points.", text)
        self.assertIn(
            "topk:density=0.01+ef buys speed with accuracy: 2.00× the speed of bf16", text
        )

    def test_reports_when_compression_does_not_pay(self) -> None:
        slow = training("int8", [0.88], epoch_seconds=9.9) + training("none", [0.88])
        text = self.text(slow)
        self.assertIn("Compression does not pay here (4 ranks, link 1Gbit,50us)", text)
        self.assertIn("int8 does not pay here: 1.01× the speed of none", text)

    def test_a_busy_machine_gives_no_verdict(self) -> None:
        none = training("none", [0.88])  # 10 ms compute, 24 ms exposed
        times = {"step_seconds": 0.085, "compute_seconds": 0.025, "exposed_seconds": 0.06}
        slow = training("int8", [0.88], epoch_seconds=21.2, **times)
        text = " ".join(self.text(none + slow).split())
        self.assertIn("Machine too busy to tell if compression pays here (4 ranks,", text)
        self.assertIn("int8: machine too busy to tell: 0.47\u00d7 the speed of none", text)
        self.assertIn("compute times differ by 2.30\u00d7, and all codecs compute the same.", text)
        self.assertNotIn("does not pay", text)

    def test_a_busy_baseline_gives_no_verdict_either(self) -> None:
        none = training("none", [0.88], compute_seconds=0.03, step_seconds=0.06, epoch_seconds=15.0)
        text = self.text(none + training("int8", [0.88], epoch_seconds=10.0))
        self.assertIn("int8: machine too busy to tell: 1.50\u00d7 the speed of none", text)

    def test_an_effect_larger_than_the_noise_has_a_verdict(self) -> None:
        fast = {"epoch_seconds": 4.5, "step_seconds": 0.018, "compute_seconds": 0.012}
        runs = training("none", [0.88]) + training("int8", [0.88], **fast)
        self.assertIn("int8 pays: 2.22\u00d7 the speed of none", self.text(runs))
        slow = {"epoch_seconds": 20.0, "step_seconds": 0.08, "compute_seconds": 0.012}
        runs = training("none", [0.88]) + training("int8", [0.88], **slow)
        self.assertIn("int8 does not pay here: 0.50\u00d7 the speed of none", self.text(runs))

    def test_codec_compute_time_is_not_noise(self) -> None:
        none = training("none", [0.88], exposed_seconds=0.0, step_seconds=0.01, epoch_seconds=2.5)
        work = {"step_seconds": 0.014, "compute_seconds": 0.014, "epoch_seconds": 3.5}
        for encode, says in ((0.004, "int8 does not pay here: 0.71"), (0.0, "int8: machine too")):
            int8 = training("int8", [0.88], encode_seconds=encode, exposed_seconds=0.0, **work)
            self.assertIn(says, self.text(none + int8))
        models = [{**record, "model": "gpt"} for record in none + int8]
        self.assertIn("does not pay", self.text(models))  # optimizers may compute more

    def test_verdict_option_prints_only_the_verdict(self) -> None:
        result = self.run_report(self.write(sample_trainings()), "--verdict")
        lines = result.stdout.splitlines()
        first = "- bf16 pays: 2.00\u00d7 the speed of none, accuracy +0.00 points."
        self.assertEqual(lines[0], first)
        self.assertNotIn("compression", result.stdout)
        whole = self.run_report(self.folder / "in.json", "--text").stdout
        self.assertIn(result.stdout.strip(), whole)

    def test_paying_codec_must_be_faster_than_none_and_bf16(self) -> None:
        runs = training("none", [0.88], epoch_seconds=5.0) + training("bf16", [0.88])
        text = self.text(runs + training("int8", [0.88], epoch_seconds=8.0))
        self.assertIn("int8 does not pay here: 0.62× the speed of none", text)

    def test_warns_about_runs_of_different_length(self) -> None:
        text = self.text(training("none", [0.8, 0.9]) + training("int8", [0.8]))
        self.assertIn("different lengths (1 to 2 epochs)", text)

    def test_allreduce_speedup_and_disagreement(self) -> None:
        wrong = {**allreduce_record("int8", 1024, 4e-4), "identical": False}
        text = self.text([allreduce_record("none", 1024, 1e-3), wrong])
        self.assertEqual(self.row(text, "int8")[1:5], ["4 KiB", "400 µs", "2.50×", "0.0154"])
        self.assertIn("Wrong: ranks ended with different bits with int8.", text)

    def test_collectives_are_not_mixed(self) -> None:
        scatters = {**allreduce_record("none", 1024, 5e-4), "collective": "reduce_scatter"}
        text = self.text([allreduce_record("none", 1024, 1e-3), scatters])
        self.assertIn("Allreduce: 4 ranks, inproc", text)
        self.assertIn("Reduce-scatter: 4 ranks, inproc", text)

    def test_grids_are_listed_separately(self) -> None:
        direct = {**allreduce_record("int8", 1024, 4e-4), "dims": [4]}
        grid = {**allreduce_record("int8", 1024, 3e-4), "dims": [2, 2]}
        text = self.text([direct, grid])
        self.assertEqual(self.row(text, "int8 (two-shot 4)")[2], "400 µs")
        self.assertEqual(self.row(text, "int8 (two-shot 2 x 2)")[2], "300 µs")

    def test_tensor_errors_are_weighted_by_energy(self) -> None:
        small = error_record("int8", tensor="b", count=300, bits=16.0, energy_lost=1.0, norm=1.0)
        shared = error_record("sum", ranks=8, energy_lost=0.01)
        text = self.text([error_record("int8"), small, shared])
        self.assertEqual(self.row(text, "int8")[1:], ["14.000", "4.00e-01", "6.32e-01"])
        self.assertEqual(self.row(text, "sum")[1:], ["8.000", "1.00e-02", "1.00e-01"])
        self.assertIn("sum sends integers that are added: 8 ranks share its levels.", text)

    def test_allocations_are_compared_with_a_single_codec(self) -> None:
        text = self.text(sample_allocation())
        self.assertEqual(self.row(text, "int8")[1:], ["8.000", "2.50e-01", "7.600", "5.00e-02"])
        self.assertEqual(self.row(text, "int4")[1:], ["4.000", "2.50e-01", "4.000", "2.00e-01"])
        self.assertEqual(self.row(text, "tiny")[1:], ["0.080", "7.50e-01", units.ABSENT, units.ABSENT])
        self.assertEqual(self.row(text, "b")[1:], ["100", "int4", "4.000", "2.50e-02"])
        self.assertEqual(self.row(text, "all")[2:], ["allocated", "7.600", "5.00e-02"])
        said = "relative squared error 5.00e-02; the best single codec with at most as many bits is int4"
        self.assertIn(said, " ".join(text.split()))

    def test_codecs_list_missed_aims(self) -> None:
        decode = codec_record(0.99, operation="decode", aim=0.5)
        text = self.text([codec_record(0.84, aim=0.85), decode, codec_record(0.1, codec="bf16")])
        self.assertIn("1 of 2 figures with an aim fall short: int8 encode 0.84, aim 0.85.", text)

    def test_reference_program_is_compared_with_the_codec(self) -> None:
        topk = {"codec": "topk:density=0.01", "operation": "reference nth_element"}
        text = " ".join(self.text([codec_record(0.1, baseline="x", **topk)]).split())
        self.assertIn("nth_element takes 10.0× as long as topk:density=0.01", text)

    def test_backward_passes_are_compared_with_both_references(self) -> None:
        times = {"none": 0.6, "torch:fp16": 0.32, "int8": 0.16}
        text = self.text([backward_record(hook, seconds) for hook, seconds in times.items()])
        self.assertIn("Backward pass: DDP, 64 MiB of gradients, 2 rows of input, 2 ranks", text)
        self.assertEqual(self.row(text, "int8")[2:4], ["3.75×", "2.00×"])
        self.assertIn("int8 is the fastest: 3.75× the speed of none.", text)

    def test_sharded_backward_passes_are_listed_separately(self) -> None:
        sharded = {"none": 1.0, "int8": 0.5}
        found = [backward_record(hook, 3.0, parallel="ddp") for hook in sharded]
        found += [backward_record(hook, seconds, parallel="fsdp") for hook, seconds in sharded.items()]
        found += [backward_record("int8", 0.2, parallel="fsdp", weights="int8")]
        text = self.text(found)
        self.assertIn("Backward pass: FSDP2, 64 MiB of gradients", text)
        self.assertIn("Backward pass: FSDP2, weights by int8, 64 MiB of gradients", text)
        self.assertIn("No hook is clearly faster than none here.", text)
        self.assertIn("int8 is the fastest: 2.00× the speed of none.", text)

    def test_expert_steps_are_compared_with_casts(self) -> None:
        times = {"none": 2.0, "torch:bf16": 1.0, "int8": 0.5}
        found = [backward_record(way, s, parallel="experts") for way, s in times.items()]
        text = self.text(found)
        self.assertIn("Backward pass: whole steps of experts, 64 MiB of gradients", text)
        self.assertEqual(self.row(text, "int8")[2:5], ["4.00×", units.ABSENT, "2.00×"])

    def test_no_hook_wins_by_noise(self) -> None:
        text = self.text([backward_record("none", 0.6), backward_record("auto", 0.59)])
        self.assertIn("No hook is clearly faster than none here.", text)

    def test_reducer_steps_are_listed_separately_from_calls(self) -> None:
        call = allreduce_record("none", 1024, 1e-3)
        step = {**call, "codec": "int8", "parameters": 32, "backward_seconds": 0.5, "hidden": 0.9}
        text = self.text([call, step])
        self.assertIn("Reducer: 32 parameters, backward pass of 500 ms; 4 ranks", text)
        self.assertEqual(self.row(text, "int8")[3], "—")  # no step with none
        self.assertEqual(self.row(text, "int8")[-1], "90 %")


class BadInput(Folder):
    def refused(self, content: typing.Any, *words: str) -> None:
        path = self.write(content)
        with self.assertRaises(records.ReportError) as caught:
            records.load([path])
        message = str(caught.exception)
        self.assertNotIn("\n", message)
        for word in words:
            self.assertIn(word, message)

    def test_names_file_record_and_field(self) -> None:
        record = train_record()
        del record["accuracy"]
        self.refused([train_record(), record], "in.json: record 2", '"accuracy" is missing')

    def test_wrong_types_and_ranges(self) -> None:
        self.refused([train_record(epoch="1")], "record 1", '"epoch" is "1"', "an integer")
        self.refused([train_record(seed=True)], '"seed" is true', "an integer")
        self.refused([train_record(accuracy=88.2)], '"accuracy" is 88.2', "0 to 1")
        self.refused([train_record(seconds=-1)], '"seconds" is -1', "at least 0")
        self.refused([train_record(seconds=None)], '"seconds" is null', "a number")
        self.refused([{**codec_record(1.0), "codec": 3}], '"codec" is 3', "text")

    def test_not_records(self) -> None:
        self.refused("{", "in.json", "not JSON")
        self.refused({}, "in.json", "array")
        self.refused([], "in.json", "no records")
        self.refused("[" * 100_000 + "]" * 100_000, "in.json", "nested too deeply")
        self.refused([7], "record 1", "object")
        self.refused([{}], "record 1", '"benchmark" is missing')
        self.refused([{"benchmark": "x"}], "record 1", '"x"', "codecs, allocate, allreduce")

    def test_invalid_numbers(self) -> None:
        self.refused([codec_record(1.0) | {"count": 10**400}], '"count"', "401 digits")
        self.refused([train_record(seconds=10**400)], '"seconds"', "401 digits")
        self.refused('[{"benchmark": "train", "codec": "a", "seed": 1e999}]', "seed", "Infinity")
        text = json.dumps([train_record(accuracy=float("nan"))])
        self.refused(text, '"accuracy" is nan')
        self.load([train_record(loss=None)])  # a diverged run

    def test_duplicate_run(self) -> None:
        self.refused([train_record(), train_record()], "two train records", "seed 1")

    def test_bandwidth_in_a_wrong_unit(self) -> None:
        record = allreduce_record("none", 1024, 1e-3)
        self.refused([{**record, "algbw": record["algbw"] * 1e9}], '"algbw"', "GB/s")


@unittest.skipUnless(HAS_MATPLOTLIB, "matplotlib is missing: apt-get install python3-matplotlib")
class CommandLine(Folder):
    def refused(self, *arguments: typing.Any) -> str:
        result = self.run_report(*arguments)
        self.assertEqual(result.returncode, 2, result)
        self.assertNotIn("Traceback", result.stderr)
        return result.stderr

    def test_bad_records(self) -> None:
        message = self.refused(self.write("["), "--text")
        self.assertRegex(message, r"^tersor_report: .*in\.json: not JSON.*\n$")

    def test_missing_file(self) -> None:
        message = self.refused(self.folder / "none.json", "--text")
        self.assertIn("none.json: No such file", message)

    def test_unwritable_folder_is_reported_before_bad_records(self) -> None:
        blocked = self.write("a file, not a folder", "blocked")
        message = self.refused(self.write("["), "-o", blocked / "out")
        self.assertIn(f"cannot write to {blocked}", message)
        self.assertEqual(message.count("\n"), 1)

    def test_check_needs_no_records(self) -> None:
        result = self.run_report("--check", "-o", self.folder / "a" / "b")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertEqual(list((self.folder / "a" / "b").iterdir()), [])
        blocked = self.write("", "blocked")
        self.assertIn("cannot write", self.refused("--check", "-o", blocked))

    def test_missing_arguments_are_rejected(self) -> None:
        self.assertIn("FILE.json", self.refused("-o", self.folder))
        self.assertIn("-o DIR", self.refused("--check"))
        self.assertIn("nothing to do", self.refused(self.write([codec_record(0.9)])))

    def test_a_picture_needs_one_training(self) -> None:
        path = self.folder / "p.png"
        message = self.refused(self.write([codec_record(0.9)]), "--picture", path)
        self.assertIn("one setting", message)
        self.assertFalse(path.exists())


if __name__ == "__main__":
    unittest.main()
