"""One model in several processes: whole in each (DDP), or cut in pieces (FSDP2).

Shapes: W processes; a parameter [N, ...] is cut along its first dimension.

A rollout calls parts of the model (``encode``, ``early_logits``, ``decode``, ``final_logits``), between which the
sampler and the environment work; ``forward`` is not called. ``DistributedDataParallel`` prepares its reductions in
``forward``, and would miss all of it. What it does for gradients is therefore done openly, after the backward pass here
and beside it in :mod:`~rltok_rl.training.averaging`. FSDP2 gathers parameters where a module is called, and can be told
which methods are calls (``register_fsdp_forward_method``); it averages gradients in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from rltok_rl.models.layers import TransformerLayer
from rltok_rl.models.unet import UNet
from rltok_rl.training.distributed import Processes

STRATEGIES = ("none", "ddp", "fsdp")
"""``none`` is one process; ``ddp`` and ``fsdp`` with one process are the same as none."""
BUCKET_BYTES = 32 << 20
"""Gradients are reduced in pieces of about this size: few enough calls, and little memory beside the gradients."""
_CALLED = ("encode", "early_logits", "early_log_prob", "decode", "decode_levels", "final_logits", "final_log_prob")


def prepare_model(model: UNet, strategy: str, processes: Processes) -> None:
    """Make a model, the same in all processes afterwards, ready to be trained by all of them; in place.

    Optimizers are made afterwards: FSDP2 puts pieces in the place of parameters.

    Args:
        model: whole, on the device of its process.
        strategy: one of :data:`STRATEGIES`.
        processes: that train together.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {list(STRATEGIES)}, got {strategy!r}")
    if processes.group is None:
        return
    if strategy == "none":
        raise ValueError(
            f"strategy must be 'ddp' or 'fsdp' with {processes.world_size} processes, got 'none', which is one process"
        )
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, src=0, group=processes.group)
    if strategy == "fsdp":
        _shard(model, processes)


def _shard(model: UNet, processes: Processes) -> None:
    """Cut every module that is called on its own; what a rollout calls is a call of the whole model's.

    Heads and norms are apart because actor and early exit call them outside the byte layers, in any order. Nothing is
    left for the model as a whole: its calls tell FSDP2 what belongs together, the first of a rollout being ``encode``.
    The boundary terms are views of what their projection makes, of which FSDP2 warns; the projection alone is cut.
    """
    mesh = init_device_mesh(processes.device.type, (processes.world_size,))
    layers = [module for module in model.modules() if isinstance(module, TransformerLayer)]
    norms, projection = (model.encoder_norm, model.decoder_norm), model.boundary_head.projection
    routing = (
        [] if model.second_level is None or model.second_level.routing is None else _own(model.second_level.routing)
    )
    for module in (model.embedding, *layers, *norms, projection, *routing, model.early_head, model.final_head, model):
        fully_shard(module, mesh=mesh)
    for name in _CALLED:
        register_fsdp_forward_method(model, name)


def _own(module: nn.Module) -> list[nn.Module]:
    """Parts of a module that have parameters."""
    return [part for part in module.children() if any(True for _ in part.parameters())]


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor], group: ProcessGroup | None) -> None:
    """Average the gradients of whole parameters over processes; those of pieces are averages already.

    Args:
        parameters: after their backward pass; the same have a gradient in all processes.
        group: the processes; None does nothing.
    """
    if group is None:
        return
    gradients = [p.grad for p in parameters if p.grad is not None and not isinstance(p, DTensor)]
    under_way = []
    for bucket in buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])  # [n]
        under_way.append((bucket, flat, dist.all_reduce(flat, group=group, async_op=True)))
    for bucket, flat, work in under_way:
        write_average(bucket, flat, work, group)


@torch.no_grad()
def write_average(bucket: Sequence[Tensor], total: Tensor, work: dist.Work, group: ProcessGroup) -> None:
    """Wait for a sum over processes, and write the average into the gradients that it was made of.

    Args:
        bucket: the gradients.
        total: [n] their sums, flat, once they are there.
        work: on them.
        group: the processes.
    """
    work.wait()
    parts = total.div_(group.size()).split([gradient.numel() for gradient in bucket])
    for gradient, part in zip(bucket, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in their order, as many together as fit, of one dtype each.

    Args:
        tensors: gradients.
    """
    bucket: list[Tensor] = []
    for tensor in tensors:
        size = sum(x.nbytes for x in bucket)
        if bucket and (size + tensor.nbytes > BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def whole(state: Any) -> Any:
    """A state with tensors in the place of pieces, the same whatever the strategy; all processes have to ask.

    Args:
        state: nested dicts, lists and tuples.
    """
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole(value) for value in state)
    return state


def whole_model(model: UNet) -> UNet:
    """A model that one process can run alone: itself, or a copy that is in one piece; all processes have to ask."""
    if not isinstance(model.embedding.weight, DTensor):
        return model
    weights = whole(model.state_dict())
    with torch.device("meta"):
        copy = UNet(model.config)
    copy.load_state_dict(weights, assign=True)
    return copy.train(model.training)


@torch.no_grad()
def load_whole(
    model: nn.Module, optimizer: torch.optim.Optimizer, weights: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """Load what :func:`whole` made, cut as the parameters are now.

    Args:
        model: whole or in pieces.
        optimizer: over its parameters.
        weights: the model's state, of one in one piece.
        state: the optimizer's.
    """
    own = dict(model.state_dict())
    model.load_state_dict({name: _cut_like(x, own[name]) if name in own else x for name, x in weights.items()})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {
        number: {name: _cut_like(x, parameters[number]) for name, x in entry.items()}
        for number, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


def _cut_like(value: Any, parameter: Tensor) -> Any:
    """A tensor of a parameter's shape in pieces, if the parameter is; anything else as it is."""
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
