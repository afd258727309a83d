"""Gradients of a batch that does not fit into memory at once, equal to those of one that does.

Shapes: m micro-batches of B rows each, T decisions.

The language model's losses are means over steps, so that micro-batches can be trained on one by one. What concerns the
policy is not: a batch-relative advantage and a rate belong to the whole batch. Both depend on the model through
the boundary logits [m B, T] alone, which are small. They are therefore differentiated with respect to the logits of the
whole batch, and what that gives is propagated through encoder and policy micro-batch by micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase, cat
from torch import Tensor

from rltok_rl.agents import EncodingBoundaryActor
from rltok_rl.functional.policy import boundary_entropy, boundary_log_prob
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import EarlyExitLoss, JointLoss, LanguageModelLoss

_PER_STEP = (LanguageModelLoss, EarlyExitLoss)


def joint_gradients(
    model: UNet,
    draw: Callable[[], TensorDictBase],
    loss: JointLoss,
    *,
    micro_batches: int = 1,
    precision: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Add the gradients of one batch to ``model``'s parameters.

    Args:
        model: the U-Net.
        draw: makes a rollout [B, T] with gradients, all of one shape.
        loss: the joint loss. With several micro-batches, terms other than the two next-byte losses may depend on the
            model through boundary logits alone, and rows must be texts from their first byte on.
        micro_batches: m; the batch is m rollouts.
        precision: dtype of matrix products under autocast; None leaves the model's own.

    Returns:
        Losses and figures of the whole batch, without gradient, ``loss`` being the total.
    """
    if micro_batches < 1:
        raise ValueError(f"micro_batches must be at least 1, got {micro_batches}")
    device = model.embedding.weight.device
    autocast = torch.autocast(device.type, dtype=precision or torch.bfloat16, enabled=precision is not None)
    if micro_batches == 1:
        with autocast:
            rollout = draw()
        found = loss(rollout)
        total = loss.total(found)
        total.backward()
        return {**{name: value.detach() for name, value in found.items()}, "loss": total.detach()}

    direct = [name for name, term in loss.terms.items() if isinstance(term, _PER_STEP)]
    kept: list[TensorDictBase] = []
    noted: dict[str, list[Tensor]] = {}
    for _ in range(micro_batches):
        with autocast:
            rollout = draw()
        parts = [_run(loss, name, rollout, noted) for name in direct]
        if parts:
            (torch.stack(parts).sum() / micro_batches).backward()
        kept.append(rollout.detach())
    batch = cat(kept, 0)
    figures = {name: torch.stack(values).mean(0) for name, values in noted.items()}

    logits = batch["logits"].clone().requires_grad_()
    batch["logits"] = logits
    # What losses read of the policy, as functions of these logits.
    batch["action_log_prob"] = boundary_log_prob(logits, batch["action"], forced=batch["forced"])
    batch["entropy"] = boundary_entropy(logits, forced=batch["forced"])
    rest: dict[str, list[Tensor]] = {}
    weighted = [_run(loss, name, batch, rest) for name in loss.terms if name not in direct]
    figures |= {name: value for name, (value,) in rest.items()}
    if weighted:
        torch.stack(weighted).sum().backward()
        assert logits.grad is not None
        actor = EncodingBoundaryActor(model)
        for rows, gradient in zip(kept, logits.grad.split(len(kept[0])), strict=True):
            with autocast:
                again = actor.get_dist(rows).logits
            again.backward(gradient.to(again.dtype))
    figures["loss"] = torch.stack([value for key, value in figures.items() if key.startswith("loss_")]).sum()
    return figures


def _run(loss: JointLoss, name: str, rollout: TensorDictBase, noted: dict[str, list[Tensor]]) -> Tensor:
    """The weighted loss of a term; all that it writes is noted."""
    found = loss.run_term(name, rollout)
    for key, value in found.items():
        noted.setdefault(key, []).append(value.detach())
    return torch.stack([value for key, value in found.items() if key.startswith("loss_")]).sum()
