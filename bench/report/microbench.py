"""Converts the JSON of tersor-microbench (Google Benchmark) to records of `codecs`.

A benchmark of a codec has the name MACHINE/OPERATION/CODEC/DTYPE/COUNT/threads:N[/checksum:on|off]
and, as label, the plain loop of its ratio. Memory loops and transports have no records. Skipped
benchmarks are left out.
"""

import typing

Entry = dict[str, typing.Any]

# The names of operations in records, if they differ.
OPERATIONS = {
    "encode_feedback": "encode+feedback",
    "encode_feedback_far_miss": "encode+feedback, far miss",
    "encode_feedback_cub_sort": "encode+feedback (CUB sort)",
    "encode_feedback_cub_select": "encode+feedback (CUB select)",
    "encode_two_kernels": "encode (two kernels, plain CUDA)",
    "encode_nth_element": "reference nth_element",
    "decode_add": "decode-add",
    "multi_tensor": "multi-tensor",
    "multi_tensor_graph": "multi-tensor, graph",
    "small_graph": "small, graph",
    "raw_rounds": "raw rounds",
}
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
COUNTERS = ("payload_bytes", "workspace_bytes")


def is_microbench(document: typing.Any) -> bool:
    return isinstance(document, dict) and "context" in document and "benchmarks" in document


def records_of(document: Entry) -> list[Entry]:
    """One record per benchmark: the median of its repetitions."""
    context = document["context"]
    runs: dict[str, list[Entry]] = {}
    for run in document["benchmarks"]:
        if run.get("error_occurred") or run.get("skipped") or "relative_error" not in run:
            continue
        if run["run_type"] == "iteration" or run.get("aggregate_name") == "median":
            runs.setdefault(run["run_name"], []).append(run)
    return [_record(name, _median(repeats), context) for name, repeats in runs.items()]


def _median(runs: list[Entry]) -> Entry:
    """The reported median, or the repetition of median time."""
    for run in runs:
        if run["run_type"] == "aggregate":
            return run
    return sorted(runs, key=lambda run: run["real_time"])[(len(runs) - 1) // 2]


def _record(name: str, run: Entry, context: Entry) -> Entry:
    machine, operation, codec, dtype, count, *options = name.split("/")
    fields = dict(option.split(":") for option in options if ":" in option)
    keeps_residual = operation.startswith("encode_feedback") or operation == "reduce"
    on_gpu = machine == "cuda"
    seconds = run["real_time"] * UNITS[run["time_unit"]]
    record = {
        "benchmark": "codecs",
        "codec": codec + ("+ef" if keeps_residual else ""),
        "operation": OPERATIONS.get(operation, operation),
        "dtype": dtype,
        "count": int(count),
        "isa": "cuda" if on_gpu else context["isa"],
        "threads": int(fields["threads"]),
        "seconds": seconds,
        "baseline": run["label"],
        "baseline_seconds": run["ratio"] * seconds,
        "useful_bytes": round(run["bytes_per_second"] * seconds),
        "relative_error": run["relative_error"],
        "checksum": fields.get("checksum") == "on",
        "data": context["data"],
        "machine": context["machine"],
        "date": context["date"],
        "commit": context["commit"],
    }
    record |= {counter: round(run[counter]) for counter in COUNTERS}
    record |= {counter: run[counter] for counter in run if counter.endswith("ratio")}
    return record | ({"device": context["gpu"]} if on_gpu else {})
