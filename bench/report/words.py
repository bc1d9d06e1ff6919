"""Names of codecs and hooks in words, for figures and captions."""

# The words of a hook's name, and of its number.
HOOKS = {
    "adamw": ("CompressedAdamW", " after {} steps"),
    "muon": ("CompressedMuon", " after {} steps"),
    "sgd": ("CompressedSGD", " after {} steps"),
    "onebit-adam": ("1-bit Adam", ", {} uncompressed steps"),
    "demo": ("DeMo", ", {} coefficients per chunk"),
    "dion": ("Dion", ", rank {}"),
    "sparseloco": ("SparseLoCo", " every {} steps"),
    "diloco": ("DiLoCo", " every {} steps"),
    "torchft": ("torchft's DiLoCo", " every {} steps"),
    "server": ("parameter server", ", {}"),
    "gossip": ("gossip", ", {}"),
}
PREFIXES = {"tersor": "Tersor", "weighted": "sample-weighted"}
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
        rest, _, start = rest.partition(",start=")
        hook, _, rank = rest.partition("=")
        words = [f"PyTorch {hook.replace('powersgd', 'PowerSGD')} hook", rank and f"rank {rank}"]
        return ", ".join(filter(None, [*words, start and f"{start} uncompressed steps"]))
    if name in PREFIXES:
        return f"{PREFIXES[name]} {codec_in_words(rest)}"
    head, *options = name.split(",")
    word, _, number = head.partition("=")
    if word not in HOOKS:
        return codec_in_words(spec)
    hook, of_number = HOOKS[word]
    words = [hook + (number and of_number.format(number)), rest and codec_in_words(rest)]
    return ", ".join(filter(None, words + [option.replace("=", " ") for option in options]))


def codec_in_words(spec: str) -> str:
    """ "topk:density=0.01,values=bf16+ef" becomes "topk 1 %, bf16 values, error feedback".

    A second codec follows a slash.
    """
    if "/" in spec:
        return " / ".join(map(codec_in_words, spec.split("/")))
    spec, plus, _ = spec.partition("+ef")
    name, _, options = spec.partition(":")
    words = [name, *(_option(*one.split("=")) for one in options.split(",") if one)]
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
