"""Gradients of a batch that does not fit into memory at once, equal to those of one that does.

Shapes: m micro-batches of B rows each, T decisions.

The language model's losses are means over steps, so that micro-batches can be trained on one by one. What concerns the
policy is not: a batch-relative advantage and a rate belong to the whole batch. Both depend on the model through
the boundary logits [m B, T] alone, which are small. They are therefore differentiated with respect to the logits of the
whole batch, and what that gives is propagated through encoder and policy micro-batch by micro-batch. The same serves
further epochs over a stored batch: encoder and policy run again, token layers and decoder do not. The ratio loss of a
second level reads what token layers made; its two rates are those of a micro-batch, as H-Net's are those of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase, cat
from torch import Tensor

from rltok_rl.agents import EncodingBoundaryActor
from rltok_rl.functional.policy import boundary_entropy, boundary_log_prob
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import EarlyExitLoss, JointLoss, LanguageModelLoss, SecondLevelLoss
from rltok_rl.objectives.policy import advantages_of
from rltok_rl.objectives.segmented import SegmenterLoss

_PER_STEP = (LanguageModelLoss, EarlyExitLoss, SecondLevelLoss, SegmenterLoss)
Parts = Sequence[TensorDictBase]


def joint_gradients(
    model: UNet,
    draw: Callable[[], TensorDictBase],
    loss: JointLoss,
    *,
    micro_batches: int = 1,
    precision: torch.dtype | None = None,
    keep_in: list[TensorDictBase] | None = None,
    predict_only: bool = False,
    whole_rows: Callable[[], bool] = lambda: False,
) -> dict[str, Tensor]:
    """Add the gradients of one batch to ``model``'s parameters.

    Args:
        model: the U-Net.
        draw: makes a rollout [B, T] with gradients, all of one shape.
        loss: the joint loss. With several micro-batches, terms other than next-byte losses, a segmenter's and the
            second level's may depend on the model through boundary logits alone, and rows must be texts from their
            first byte on.
        micro_batches: m; the batch is m rollouts.
        precision: dtype of matrix products under autocast; None leaves the model's own.
        keep_in: gets the micro-batches, without gradient and with their advantages, for further epochs over them.
        predict_only: train with the next-byte losses, and the second level's, alone.
        whole_rows: asked once all rollouts are drawn, whether each of their rows is one text.

    Returns:
        Losses and figures of the whole batch, without gradient, ``loss`` being the total.
    """
    if micro_batches < 1:
        raise ValueError(f"micro_batches must be at least 1, got {micro_batches}")
    direct = [name for name, term in loss.terms.items() if isinstance(term, _PER_STEP)]
    if micro_batches == 1:
        with _autocast(model, precision):
            rollout = draw()
        if keep_in is not None:
            rollout = _with_advantages(rollout, loss)
            keep_in.append(rollout.detach())
        alone: dict[str, list[Tensor]] = {}
        total = torch.stack(
            [_run(loss, name, rollout, alone) for name in (direct if predict_only else loss.terms)]
        ).sum()
        total.backward()
        return {**{name: value for name, (value,) in alone.items()}, "loss": total.detach()}

    kept: list[TensorDictBase] = []
    noted: dict[str, list[Tensor]] = {}
    own = True  # whether the policy that is trained drew the boundaries
    for _ in range(micro_batches):
        with _autocast(model, precision):
            rollout = draw()
        parts = [_run(loss, name, rollout, noted) for name in direct]
        own = own and _drawn_by_policy(rollout)
        if parts:
            (torch.stack(parts).sum() / micro_batches).backward()
        kept.append(rollout.detach())
    figures = {name: torch.stack(values).mean(0) for name, values in noted.items()}
    if len(direct) < len(loss.terms) and not predict_only:
        if keep_in is not None:
            kept = list(_with_advantages(cat(kept, 0), loss).split(len(kept[0]), 0))
            keep_in.extend(kept)
        figures |= policy_gradients(model, kept, loss, precision=precision, own=own, whole_rows=whole_rows())
    figures["loss"] = torch.stack([value for key, value in figures.items() if key.startswith("loss_")]).sum()
    return figures


def policy_gradients(
    model: UNet,
    parts: Parts,
    loss: JointLoss,
    *,
    precision: torch.dtype | None = None,
    own: bool = False,
    whole_rows: bool = False,
) -> dict[str, Tensor]:
    """Add the gradients of all terms that see the model through boundary logits, for a stored batch.

    Encoder and policy run again, from the bytes up; token layers and decoder do not.

    Args:
        model: the U-Net.
        parts: micro-batches [B, T] without gradient, texts from their first byte on.
        loss: the joint loss; its next-byte losses are left out.
        precision: as for :func:`joint_gradients`.
        own: whether the policy, as it is, drew the boundaries and wrote their ``logits``. Otherwise it scores them
            again, and ``action_log_prob`` stays that of the policy that drew them.
        whole_rows: whether each row is one text, which spares the host of an accelerator a wait.

    Returns:
        Losses and figures of the batch, without gradient.
    """
    actor = EncodingBoundaryActor(model, whole_rows=whole_rows)
    batch = cat(list(parts), 0)

    def scored(rows: TensorDictBase) -> Tensor:
        with _autocast(model, precision):
            return actor.get_dist(rows).logits

    live: list[Tensor] = []  # logits that still know how they were made: of one part, which fits into memory
    if own:
        logits = batch["logits"].clone()
    elif len(parts) == 1:
        live = [scored(parts[0])]
        logits = live[0].detach().clone()
    else:
        with torch.no_grad():
            logits = torch.cat([scored(rows) for rows in parts])
    batch["logits"] = logits.requires_grad_()
    # What losses read of the policy, as functions of these logits.
    batch["entropy"] = boundary_entropy(logits, forced=batch["forced"])
    if own:
        batch["action_log_prob"] = boundary_log_prob(logits, batch["action"], forced=batch["forced"])
    noted: dict[str, list[Tensor]] = {}
    names = [name for name, term in loss.terms.items() if not isinstance(term, _PER_STEP)]
    torch.stack([_run(loss, name, batch, noted) for name in names]).sum().backward()
    assert logits.grad is not None
    for rows, gradient in zip(parts, logits.grad.split(len(parts[0])), strict=True):
        again = live.pop() if live else scored(rows)
        again.backward(gradient.to(again.dtype))
    return {name: value for name, (value,) in noted.items()}


def _autocast(model: UNet, precision: torch.dtype | None) -> torch.autocast:
    device = model.embedding.weight.device.type
    return torch.autocast(device, dtype=precision or torch.bfloat16, enabled=precision is not None)


def _drawn_by_policy(rollout: TensorDictBase) -> bool:
    log_prob = rollout.get("action_log_prob", None)
    return log_prob is not None and log_prob.requires_grad


def _with_advantages(rollout: TensorDictBase, loss: JointLoss) -> TensorDictBase:
    """The rollout with the advantages that the policy's term would make for itself."""
    term = loss.terms["policy"]
    return advantages_of(rollout, term.tensor_keys.advantage, term._value_estimator)[0]


def _run(loss: JointLoss, name: str, rollout: TensorDictBase, noted: dict[str, list[Tensor]]) -> Tensor:
    """The weighted loss of a term; all that it writes is noted."""
    found = loss.run_term(name, rollout)
    for key, value in found.items():
        noted.setdefault(key, []).append(value.detach())
    return torch.stack([value for key, value in found.items() if key.startswith("loss_")]).sum()
