"""Compresses FSDP2, by replacing the reduce-scatter of each ``FSDPModule``.

FSDP passes the unsharded gradients of a module's parameters, and each rank receives the mean of its
shards. On request, the all-gather of weights is compressed too. On a 2-D mesh, a second reducer
exchanges the shards between replicas.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor._options import expect, fill, takes_advanced
from tersor._renamed import renamed_keywords
from tersor.reducer import ReducerOptions, ResidualDtype, Rules, ShardedOptions, merged_options
from tersor.torch import _compat
from tersor.torch._src.fsdp.exchange import Exchange, GradientExchange, ReplicaExchange, Sender
from tersor.torch._src.fsdp.handle import ShardedHandle, meshes_of
from tersor.torch._src.fsdp.layout import ModuleLayout, refuse_meshes
from tersor.torch._src.fsdp.weights import WeightExchange
from tersor.torch._src.gradients.loss_scale import LossScale, Scaler
from tersor.torch._src.gradients.low_bit_adam import last_codec, warn_at_first_step
from tersor.torch._src.gradients.sample_weights import refuse_weighted
from tersor.torch._src.parameters.selection import Unsupported, every_parameter, unwrapped
from tersor.torch._src.process_group.connections import as_group, seconds_of

logger = logging.getLogger("tersor")
_groups: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]]
_groups = WeakKeyDictionary()  # by the group of all ranks, and by the ranks of a mesh

RESIDUAL_BYTES = {"f32": 4, "bf16": 2}
ALGORITHMS = ("auto", "hierarchical")


@renamed_keywords(weights="weights_codec")
@takes_advanced(ShardedOptions)
def compress(
    model: nn.Module,
    codec: str = "bf16",
    *,
    rules: Rules | None = None,
    weights_codec: str | None = None,
    timeout: float | None = None,
    residual_dtype: ResidualDtype = "f32",
    weighted: bool = False,
    transactional: bool = False,
    scaler: Scaler | None = None,
    unsupported: Unsupported = "warn",
    advanced: ShardedOptions | None = None,
) -> ShardedHandle:
    """Compresses the gradients, and on request the weights, of a ``fully_shard`` model.

    Every ``FSDPModule`` of the model takes part. An error that ends an exchange is raised at the
    end of the backward pass, and gradients are NaN. Call ``compress`` on all ranks, before the
    first backward pass.

    Args:
        model: A model on which ``fully_shard`` was called.
        codec: Spec of the codec, or ``"auto"``. With ``"+ef"``, each rank keeps one residual per
            value of the whole model, 4 bytes for ``residual_dtype="f32"``. On a 2-D mesh, the
            all-reduce between replicas uses the same codec.
        rules: Codecs by parameter name, see ``tersor.torch.compress``.
        weights_codec: Codec of the all-gather of weights, such as ``"int8"``; None: uncompressed.
            1-D parameters and parameters with fewer than 4,096 values are sent as bf16. Ranks
            then compute with rounded weights. The sharded parameters of the optimizer are exact.
        timeout: Seconds after which a missing rank raises TransportError. Default: the timeout of
            the process group.
        residual_dtype: Dtype of the residuals, ``"f32"`` or ``"bf16"``.
        weighted: True if gradients are weighted by ``handle.samples``. Needs a 1-D mesh.
        transactional: True if ``discard_step`` can restore the residuals. Residuals then take twice
            the memory.
        scaler: The training's ``GradScaler``, if any. Residuals follow its scale.
        unsupported: ``"warn"`` sends unsupported gradients (float64, …) uncompressed and warns
            once with their names; ``"error"`` raises.
        advanced: Further options.

    Returns:
        The handle: statistics, state for checkpoints, and ``remove``.

    Raises:
        InvalidArgumentError: No module is sharded, a module has a custom reduce-scatter or
            all-gather already, or an option is invalid.

    Example::

        fully_shard(model)
        handle = tersor.torch.fsdp.compress(model, "int8", weights_codec="int8")
    """
    expect(model, nn.Module, "model must be a model that went through fully_shard")
    options = merged_options(ShardedOptions, **locals())
    sender, modules, reduces = prepared(model, options, unsupported)
    meshes = [one.device_mesh for one in model.parameters() if isinstance(one, DTensor)]
    on_one_mesh = len(meshes_of(reduces.values())) <= 1 and all(mesh.ndim == 1 for mesh in meshes)
    if not on_one_mesh:
        refuse_weighted(options, "FSDP2", "takes a model on one mesh, of one dimension")
    gathers = {}
    if weights_codec is not None:
        gathers = {n: WeightExchange(weights_codec, sender, one) for n, one in reduces.items()}
        _refuse_others(modules, "all-gather")
    notes = [*_memory_note(reduces.values(), sender), *_mesh_note(model, reduces.values())]
    exchanges = _install(modules, reduces, gathers)
    handle = ShardedHandle(sender, exchanges, _state_group(reduces.values()), notes)
    sender.loss_scale = LossScale(scaler, transactional)
    expected = [pair for reduce in reduces.values() for pair in reduce.expected()]
    parameters = every_parameter(model)
    warn_at_first_step(parameters, {one.name: last_codec(choice) for one, choice in expected})
    return handle


def prepared(
    model: nn.Module, options: ReducerOptions, unsupported: Unsupported = "warn"
) -> tuple[Sender, dict[str, FSDPModule], dict[str, GradientExchange]]:
    """Makes the exchange of each module, by name, and installs nothing. Raises as ``compress``."""
    modules = _sharded_modules(model)
    parameters = every_parameter(model)
    names = {id(one): name for name, one in parameters.items()}
    _refuse_others(modules, "reduce-scatter")
    sender = Sender(_checked(options), unsupported)
    layouts = {name: ModuleLayout(module, names) for name, module in modules.items()}
    reduces = {name: GradientExchange(name, one, sender) for name, one in layouts.items()}
    return sender, modules, reduces


def _sharded_modules(model: nn.Module) -> dict[str, FSDPModule]:
    """Returns the sharded modules by name. Raises InvalidArgumentError for unsupported meshes."""
    found = {name: one for name, one in model.named_modules() if isinstance(one, FSDPModule)}
    modules = unwrapped(found)
    if not modules:
        raise InvalidArgumentError(
            "no module of the model is sharded: call fully_shard(model) first"
        )
    for name, module in modules.items():
        refuse_meshes(name or "(root)", module)
    return modules


def _install(
    modules: Mapping[str, FSDPModule],
    reduces: Mapping[str, GradientExchange],
    gathers: Mapping[str, WeightExchange],
) -> list[Exchange]:
    """Installs the exchanges of modules and between replicas. Returns all exchanges."""
    for name, reduce in reduces.items():
        reduce.install(modules[name])  # per module, because PyTorch does not recurse
    for name, gather in gathers.items():
        modules[name].set_custom_all_gather(gather)  # type: ignore[arg-type]
    pairs = [(one, one.layout.replicas) for one in reduces.values()]
    replicas = [ReplicaExchange(one, group) for one, group in pairs if group is not None]
    return [*reduces.values(), *replicas, *gathers.values()]


def _checked(options: ReducerOptions) -> ReducerOptions:
    """Returns ``options``. Raises InvalidArgumentError for invalid values."""
    fill(_core.ReducerOptions(), options)
    algorithm, hosts = options.get("algorithm", "auto"), options.get("hosts")
    if algorithm not in ALGORITHMS:
        raise InvalidArgumentError(
            f"algorithm must be one of {list(ALGORITHMS)}, not {algorithm!r}"
        )
    if algorithm != "auto" and options.get("codec") == "auto":
        raise InvalidArgumentError("codec auto chooses the algorithm: leave algorithm at auto")
    if hosts and len(hosts) != (ranks := dist.get_world_size()):
        raise InvalidArgumentError(
            f"hosts has {len(hosts)} numbers for {ranks} ranks: give one number per rank"
        )
    if (dtype := options.get("residual_dtype", "f32")) not in RESIDUAL_BYTES:
        raise InvalidArgumentError(
            f"residual_dtype must be one of {list(RESIDUAL_BYTES)}, not {dtype!r}"
        )
    return options


def _refuse_others(modules: Mapping[str, FSDPModule], collective: _compat.Collective) -> None:
    """Raises InvalidArgumentError if a module has a custom collective already."""
    for name, module in modules.items():
        for exchange in _compat.fsdp_exchanges(module, collective):
            is_removed = isinstance(exchange, Exchange) and not exchange.active
            if not (is_removed or type(exchange).__module__.startswith("torch.")):
                raise InvalidArgumentError(
                    f"module {name or '(root)'} has a custom {collective} already, a "
                    f"{type(exchange).__name__}: remove it, or compress once"
                )


def _state_group(reduces: Iterable[GradientExchange]) -> dist.ProcessGroup:
    """Returns a group of the parameters' mesh, or of all ranks for several meshes.

    A collective call of these ranks.
    """
    every, trained = as_group(None), [p for one in reduces for _, p in one.layout.trained()]
    meshes = [one.device_mesh for one in trained if isinstance(one, DTensor)]
    if len(meshes_of(reduces)) > 1 or not meshes:
        return every
    mesh = max(meshes, key=DeviceMesh.size)  # with all shards of tensor parallelism
    shards = [one.layout.scatter_group for one in reduces if one.layout.mesh_ranks]
    for group in (*shards, every):
        if group.size() == mesh.size():
            return group
    groups, ranks = _groups.setdefault(every, {}), tuple(mesh.mesh.flatten().tolist())
    if ranks not in groups:
        timeout = datetime.timedelta(seconds=min(seconds_of(every), 1e9))
        made: Any = dist.new_group(ranks, timeout, "gloo", use_local_synchronization=True)
        groups[ranks] = made
    return groups[ranks]


def _memory_note(reduces: Iterable[GradientExchange], sender: Sender) -> list[str]:
    """Returns and logs the memory of the residuals on each rank."""
    values = 0
    for reduce in reduces:
        for one, choice in reduce.expected():
            if choice.feedback:
                values += one.shape.numel()
                if (replicas := reduce.layout.replicas) is not None:  # at most
                    values += one.shard_count + -(-one.shard_count // replicas.size())
    if values == 0:
        return []
    value_bytes = RESIDUAL_BYTES[sender.options.residual_dtype]
    value_bytes *= 2 if sender.options.transactional else 1
    most = "at most " if sender.options.algorithm == "hierarchical" else ""
    mib = values * value_bytes / 2**20
    note = f"error feedback keeps {most}{values} residuals on every rank: {mib:.1f} MiB"
    logger.warning(note)
    return [note]


def _mesh_note(model: nn.Module, reduces: Iterable[GradientExchange]) -> list[str]:
    """Names the uncompressed exchange, if PyTorch does not expose a module's replicas."""
    placements = [p.placements for p in model.parameters() if isinstance(p, DTensor)]
    replicated = any(isinstance(one, Replicate) for each in placements for one in each)
    if not replicated or all(one.layout.known for one in reduces):
        return []
    return ["on a 2-D mesh the all-reduce between replicas is PyTorch's own, uncompressed"]
