"""A model in several processes: averaged gradients, FSDP2 shards, and states of whole tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_only

from rltok_rl.models.layers import TransformerLayer
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import JointLoss
from rltok_rl.training.distributed import Processes

STRATEGIES = ("none", "ddp", "fsdp")
"""``none`` is one process; ``ddp`` and ``fsdp`` with one process are the same as none."""
_METHODS = ("encode", "early_logits", "early_log_prob", "decode", "decode_levels", "final_logits", "final_log_prob")
_WHOLE = StateDictOptions(full_state_dict=True)
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}  # of AdamW
_OF_GROUPS = {"betas", "eps", "weight_decay", "lr_factor"}  # torch adds names of its own, which depend on its version


def check_parallel(
    model: UNet, loss: JointLoss, segmenter: nn.Module | None, strategy: str, processes: Processes
) -> None:
    """Reject losses that cannot be trained in several processes: not sharded, or with statistics of one rank."""
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {list(STRATEGIES)}, got {strategy!r}")
    if strategy == "fsdp" and segmenter is not None:
        raise ValueError(
            "strategy must be 'none' or 'ddp' with a segmenter, which is not sharded, or a warm_start_rule, got 'fsdp'"
        )
    if processes.group is None:
        return
    if strategy == "none":
        raise ValueError(
            f"strategy must be 'ddp' or 'fsdp' with {processes.world_size} processes, got 'none', which is one process"
        )
    if strategy == "fsdp" and {id(p) for p in loss.parameters()} - {id(p) for p in model.parameters()}:
        raise ValueError("strategy must be 'ddp' with a critic, which is not sharded, got 'fsdp'")
    for name, term in loss.terms.items():
        for part in (term, getattr(term, "_value_estimator", None)):
            if part is not None and getattr(part, "process_group", processes.group) is not processes.group:
                raise ValueError(
                    f"process_group of {type(part).__name__} in term {name!r} must be that of the processes that train "
                    f"together, got {part.process_group}"
                )


def prepare_model(model: UNet, strategy: str, processes: Processes) -> None:
    """Copy rank 0's model to all processes, and shard it for ``"fsdp"``; in place, before optimizers are made.

    Every module that is called on its own is sharded: actor and early exit call heads and norms outside the byte
    layers, in any order. The boundary terms are views of their projection's output, of which FSDP2 warns, so the
    projection alone is sharded.
    """
    if processes.group is None:
        return
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, src=0, group=processes.group)
    if strategy != "fsdp":
        return
    mesh = init_device_mesh(processes.device.type, (processes.world_size,))
    layers = [module for module in model.modules() if isinstance(module, TransformerLayer)]
    norms = [norm for norm in (model.encoder_norm, model.decoder_norm) if list(norm.parameters())]
    projection = model.boundary_head.projection
    router = None if model.second_level is None else model.second_level.routing
    routing = [] if router is None else [part for part in router.children() if list(part.parameters())]
    for module in (model.embedding, *layers, *norms, projection, *routing, model.early_head, model.final_head, model):
        fully_shard(module, mesh=mesh)
    for name in _METHODS:
        register_fsdp_forward_method(model, name)


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor], group: ProcessGroup | None) -> None:
    """Average gradients over processes in one all-reduce after the backward pass; FSDP2 has averaged its shards.

    ``DistributedDataParallel`` around the training step overlaps this with the backward pass, but its buckets change
    after the first update, so that with more than two processes a resumed run would differ in the last bits.
    """
    gradients = [p.grad for p in parameters if p.grad is not None and not isinstance(p.grad, DTensor)]
    if group is None or not gradients:
        return
    total = nn.utils.parameters_to_vector(gradients)  # [n]
    dist.all_reduce(total, group=group)
    nn.utils.vector_to_parameters(total / group.size(), gradients)


def full_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the states of ``model`` and ``optimizer`` with whole tensors; all processes call it.

    torch's ``get_optimizer_state_dict`` is not used: before the first update it would make an optimizer step.
    """
    moments = tree_map_only(DTensor, DTensor.full_tensor, optimizer.state_dict())
    moments["without_moments"] = _without_moments(moments)
    return {"model": get_model_state_dict(model, options=_WHOLE), "optimizer": moments}


def _without_moments(state: Mapping[str, Any]) -> list[int]:
    """Return the parameters of an optimizer's state that have no moments: they have never had a gradient."""
    return [n for group in state["param_groups"] for n in group["params"] if n not in state["state"]]


def check_moments(state: Mapping[str, Any]) -> None:
    """Require the moments that an optimizer's state had when it was saved."""
    if lost := sorted({*_without_moments(state)} - {*state["without_moments"]}):
        raise ValueError(f"parameters {lost} have lost their moments")
    for n, entry in state["state"].items():
        if {*entry} != _MOMENTS:
            raise ValueError(f"parameter {n!r:.60} has the moments {[*entry]}")
        for name, allowed in (("step", torch.empty((), device="meta")), ("exp_avg", entry["exp_avg_sq"])):
            if _describe(entry[name]) != _describe(allowed):
                raise ValueError(f"{name} of parameter {n} must be {_describe(allowed)}, got {_describe(entry[name])}")


def check_weights(expected: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Require the names, shapes and kinds of the expected weights."""
    if problems := _misfits(expected, weights):
        raise ValueError("; ".join(problems))


def load_weights(model: nn.Module, weights: dict[str, Any]) -> None:
    """Load whole weights that :func:`check_weights` has accepted, sharding them as the model's parameters are."""
    set_model_state_dict(model, dict(weights), options=_WHOLE)  # it replaces tensors by shards


def _misfits(expected: Mapping[str, Any], weights: Mapping[str, Any]) -> list[str]:
    """Describe the weights that are missing, unknown, or of another shape or kind."""
    described = {name: _describe(x) for name, x in weights.items()}
    problems = [f"{name} is missing" for name in expected if name not in described]
    problems += [f"{name} is unknown" for name in described if name not in expected]
    for name, x in expected.items():
        if described.get(name, _describe(x)) != _describe(x):
            problems.append(f"{name} must be {_describe(x)}, got {described[name]}")
    return problems


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{'floating-point' if value.is_floating_point() else 'other'} numbers of shape {[*value.shape]}"


def load_moments(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state that :func:`check_moments` has accepted, with whole moments of the optimizer's parameters."""
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    for group, saved_group in zip(optimizer.param_groups, state["param_groups"], strict=False):  # torch counts them
        if missing := sorted(_OF_GROUPS & {*group} - {*saved_group}):
            raise ValueError(f"a group of parameters has no {missing[0]}")
    for n, entry in state["state"].items():
        if n not in parameters:
            raise ValueError(f"parameter {n!r:.60} is unknown and has the moments {[*entry]}")
        for name, moment in entry.items():
            shape = parameters[n].shape if name != "step" else ()
            if _describe(moment) != (allowed := _describe(torch.empty(shape, device="meta"))):
                raise ValueError(f"{name} of parameter {n} must be {allowed}, got {_describe(moment)}")

    def shard(value: Tensor, parameter: Tensor) -> Tensor:
        if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)

    moments = {n: {k: shard(x, parameters[n]) for k, x in entry.items()} for n, entry in state["state"].items()}
    optimizer.load_state_dict({**state, "state": moments})


def whole_model(model: UNet) -> UNet:
    """Return the model if it is not sharded, else an unsharded copy; all processes call it."""
    if not isinstance(model.embedding.weight, DTensor):
        return model
    with torch.device("meta"):
        copy = UNet(model.config)
    copy.load_state_dict(get_model_state_dict(model, options=_WHOLE), assign=True)
    return copy.train(model.training)
