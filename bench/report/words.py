"""Names of codecs and hooks in words, for figures and captions."""

HOOKS = {"adamw": "CompressedAdamW", "muon": "CompressedMuon", "sgd": "CompressedSGD"}
WHOLE = {
    "muon": "uncompressed Muon",
    "torch:fp16": "PyTorch fp16 hook",
    "torch:bf16": "PyTorch bf16 hook",
}


def in_words(spec: str) -> str:
    """Returns the words for a codec, or for a hook of the Python benchmarks."""
    if spec in WHOLE:
        return WHOLE[spec]
    name, _, rest = spec.partition(":")
    if name == "torch":
        hook, _, rank = rest.partition("=")
        return f"PyTorch {hook.replace('powersgd', 'PowerSGD')} hook" + (rank and f", rank {rank}")
    if name.startswith("onebit-adam"):
        return f"1-bit Adam, {name.partition('=')[2]} uncompressed steps"
    optimizer, _, option = name.partition(",")
    if optimizer in HOOKS:
        momentum = option.replace("momentum=", ", momentum ")
        return f"{HOOKS[optimizer]}, {codec_in_words(rest)}{momentum}"
    return codec_in_words(spec)


def codec_in_words(spec: str) -> str:
    """ "topk:density=0.01,values=bf16+ef" becomes "topk 1 %, bf16 values, error feedback"."""
    spec, plus, _ = spec.partition("+ef")
    name, _, options = spec.partition(":")
    words = [name, *filter(None, (_option(*one.split("=")) for one in options.split(",") if one))]
    joined = " ".join(words[:2]) + "".join(f", {word}" for word in words[2:])
    return joined + (", error feedback" if plus else "")


def _option(key: str, value: str) -> str:
    if key == "density":
        return f"{100 * float(value):g} %"
    if key in ("bits", "lanes"):
        return f"{value} bit" if value == "1" else f"{value} bits"
    return {"rounding": value, "values": f"{value} values", "rank": f"rank {value}"}.get(
        key, f"{key} {value}"
    )
