"""The project's aims for codecs on a CPU, compared with measurements.

An aim is a ratio to the record's own baseline. Two aims compare records with each other. One
compares stochastic rounding with rounding to nearest. The other compares top-k with
std::nth_element (the operation "reference …", with the codec's own encode as baseline).
"""

import palette
import units
from records import CodecRecord

FROM_MEMORY = 16 * 2**20  # values; larger gradients are far larger than any cache
IN_L2 = 2**18  # values; 1 MiB of f32
DEVICE = "cuda"  # instruction set; scripts/gpu-check checks separate aims
STOCHASTIC = ":rounding=stochastic"
STOCHASTIC_AIM = 0.80
STOCHASTIC_AIM_ON_DEVICE = 0.95
SELECTION_AIM = 8.0


def is_reference(record: CodecRecord) -> bool:
    """True for another program's operation with the same payload, timed for comparison."""
    return record.operation.startswith("reference")


def aim(record: CodecRecord) -> float | None:
    """The record's aim; otherwise the project's aim."""
    if record.aim is not None:
        return record.aim
    if record.dtype != "f32" or record.isa == DEVICE:
        return None
    if record.count >= FROM_MEMORY:
        return _aim_from_memory(record)
    if record.count <= IN_L2 and (record.codec, record.operation) == ("int8", "encode"):
        return _aim_in_l2(record.isa.lower())
    return None


def _aim_from_memory(record: CodecRecord) -> float | None:
    if record.operation in ("encode", "decode"):
        return 0.85 if record.codec == "int8" else None
    if record.operation == "encode+feedback":
        return 0.90 if record.codec == "int8+ef" or palette.family(record.codec) == "topk" else None
    return 0.60 if record.operation.startswith("encode+feedback, ") else None


def _aim_in_l2(isa: str) -> float | None:
    if "avx2" in isa:
        return 0.17
    return 0.27 if "avx" in isa else None


def falls_short(record: CodecRecord) -> bool:
    goal = aim(record)
    return goal is not None and record.ratio is not None and record.ratio < goal


def sentences(group: list[CodecRecord], title: str) -> list[str]:
    """Lists the missed aims of a panel, and the comparisons between records."""
    aimed = [record for record in group if aim(record) is not None and record.ratio is not None]
    said = _pairs_stochastic(group) + _references(group)
    if aimed:
        missed = [_shortfall(record) for record in aimed if falls_short(record)]
        listed = ": " + "; ".join(missed) if missed else ""
        said.insert(0, f"{len(missed)} of {len(aimed)} figures with an aim fall short{listed}.")
    return [f"{title}: {sentence}" for sentence in said]


def _shortfall(record: CodecRecord) -> str:
    return f"{record.codec} {record.operation} {record.ratio:.2f}, aim {aim(record):.2f}"


def _pairs_stochastic(group: list[CodecRecord]) -> list[str]:
    seconds = {(r.codec, r.operation): r.seconds for r in group if r.operation == "encode"}
    goal = STOCHASTIC_AIM_ON_DEVICE if group[0].isa == DEVICE else STOCHASTIC_AIM
    pairs = [
        (codec, seconds[codec, operation] / time)
        for (spec, operation), time in seconds.items()
        if (codec := spec.replace(STOCHASTIC, "")) != spec and (codec, operation) in seconds
    ]
    return [
        f"{codec} with stochastic rounding encodes at {share:.2f} of nearest's speed "
        f"({_reached(share, goal, f'{goal:.2f}')})."
        for codec, share in pairs
    ]


def _references(group: list[CodecRecord]) -> list[str]:
    return [_slower(r, 1.0 / r.ratio) for r in group if is_reference(r) and r.ratio]


def _slower(record: CodecRecord, times: float) -> str:
    reference = record.operation.removeprefix("reference ")
    reached = _reached(times, SELECTION_AIM, units.ratio(SELECTION_AIM))
    longer = f"{reference} takes {units.ratio(times)} as long as {record.codec}"
    return f"{longer} for the same payload ({reached})."


def _reached(value: float, goal: float, written: str) -> str:
    return f"aim {written}" if value >= goal else f"falls short of the aim, {written}"
