"""Advantages of each decision of one text, by estimator, next to their counterfactual truth.

    D_t = 2 A_t if a_t = 1, -2 A_t if a_t = 0            E D_t = E[Q_t(1) - Q_t(0)]

The truth on the right is the difference of return between drawing and not drawing a boundary after byte t, over the
policy's decisions before and after. With both decisions equally likely, an advantage estimates this difference by D_t.
An unbiased estimator's mean is the truth, whatever its baseline; noise of D_t includes what no baseline removed.

The same text is read with both decisions at each byte and the same random numbers afterwards, so a bias shows after
few draws, and decisions that the policy hardly ever takes are measured as well as others.

Shapes: K draws, B rows of a batch, T decisions, F = T - 1 free ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rltok_rl.data import WindowSource
from rltok_rl.diagnostics.enumeration import roll_out_strings
from rltok_rl.diagnostics.estimator_report import Candidate
from rltok_rl.diagnostics.gradient_quality import correlation, signal_to_noise
from rltok_rl.functional.returns import discounted_return
from rltok_rl.functional.rewards import charge_boundaries
from rltok_rl.models.flops import update_flops
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import sample_boundaries
from rltok_rl.text import text_to_ids
from rltok_rl.utils import check_count


@dataclass(frozen=True)
class DecisionCredit:
    """Repeated measurements of the free decisions of a text, the first of which follows its second byte or a mark."""

    probs: Tensor  # [K, F] probability of a boundary
    worth: Tensor  # [K, F] return with the boundary minus return without, nats: the truth is its mean
    estimates: dict[str, Tensor]  # [K, 2, F] of the truth, from not drawing and from drawing, by estimator

    def differences(self, name: str) -> Tensor:
        """[K, F] mean of both estimates: advantage of drawing minus advantage of not drawing."""
        return self.estimates[name].mean(1)

    def deviation(self, name: str) -> Tensor:
        """[F] standard deviation of a single estimate."""
        return self.estimates[name].flatten(0, 1).std(0)


@dataclass(frozen=True)
class CreditRow:
    """Bias and noise of an estimator, root mean squares over decisions in nats."""

    name: str
    bias: float  # of the mean estimate, corrected for noise; 0 if noise is larger
    bias_error: float  # standard error; nan if the bias is within two standard errors of 0
    bias_limit: float  # bound of the bias with 97.5 % confidence
    deviation: float  # standard deviation of a single estimate
    rmse: float  # ``sqrt(bias^2 + deviation^2)``
    correlation: float  # of single estimates with the truth, over decisions
    correlation_error: float
    cost: float  # FLOPs of an update relative to one without an estimator


@torch.no_grad()
def measure_credit(
    model: UNet,
    text: str | bytes,
    others: WindowSource,
    candidates: Sequence[Candidate],
    *,
    gamma: float,
    num_draws: int,
    price: float = 0.0,
    num_rows: int = 16,
    warm_up: int = 4,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> DecisionCredit:
    """Draw the boundaries of a text K = ``num_draws`` times, flip each decision, and estimate all advantages.

    Candidates compare the text's rows with windows of ``others``, as in a batch of B = ``num_rows``. ``gamma``
    discounts the truth. A boundary costs ``price`` nats in the truth and in the candidates' rewards; an estimator that
    reads likelihoods, as :class:`~rltok_rl.objectives.flips.LocalFlips` does, has its own. Candidates that learn or
    have memory get ``warm_up`` batches beforehand, and one batch after each draw. ``progress`` is called with draws
    done and draws in all.
    """
    sizes = {candidate.rows_per_text for candidate in candidates}
    rows_per_text = max(sizes)
    if num_rows <= rows_per_text or any(num_rows % size for size in sizes):
        raise ValueError(
            f"num_rows must be a multiple of {sorted(sizes)}, the candidates' rows per text, and larger, got {num_rows}"
        )
    device = model.embedding.weight.device
    ids = model.mark(text_to_ids(text)[None]).to(device)  # [1, T + 1]
    num_steps = ids.shape[1] - 1
    if num_steps < 2:
        raise ValueError(f"text must have a free decision, which takes 3 bytes, got {num_steps + 1}")
    check_count("num_draws", num_draws, minimum=3)
    generator, picks = torch.Generator(device).manual_seed(seed), torch.Generator().manual_seed(seed)
    learning = [candidate for candidate in candidates if candidate.learns]
    place = torch.arange(1, num_steps, device=device)  # [F]
    shown = torch.cat((place.new_zeros(1), rows_per_text - 1 + place))  # rows: a draw, and that draw with each flip
    probs, worth = [], []
    estimates: dict[str, list[Tensor]] = {candidate.name: [] for candidate in candidates}
    sign = torch.tensor([[-2.0], [2.0]], device=device)
    for number in range(-warm_up if learning else 0, num_draws):
        windows = others.draw(num_rows - 1, len(text_to_ids(text)), picks).byte_ids
        rest = _other_rows(model, model.mark(windows).to(device), generator)
        if number >= 0:
            rollout: Any = torch.cat((_flipped_rows(model, ids, rows_per_text, generator), rest))
            rollout.names = [None, "time"]
            drawn = rollout["action"][0, 1:].bool()
            rewards = charge_boundaries(rollout["next", "final_log_prob"].squeeze(-1), rollout["action"], price)
            returns = discounted_return(rewards, gamma).double()

            def by_side(values: Tensor, drawn: Tensor = drawn) -> Tensor:
                """[1 + F, T] of the shown rows to [2, F] without and with the boundary."""
                kept, flipped = values[0, 1:], values[place, place]
                return torch.stack((torch.where(drawn, flipped, kept), torch.where(drawn, kept, flipped)))

            without, with_boundary = by_side(returns[shown])
            worth.append(with_boundary - without)
            probs.append(rollout["logits"][0, 1:].sigmoid())
            for candidate in candidates:
                advantages = _judge(candidate, rollout, shown, num_rows, price).double()
                estimates[candidate.name].append(sign * by_side(advantages))
            if progress is not None:
                progress(number + 1, num_draws)
        for candidate in learning:
            candidate.advantages(rest[: len(rest) - len(rest) % candidate.rows_per_text], price=price)
    stacked = {name: torch.stack(each) for name, each in estimates.items()}
    return DecisionCredit(torch.stack(probs), torch.stack(worth), stacked)


def _flipped_rows(model: UNet, ids: Tensor, rows_per_text: int, generator: torch.Generator) -> TensorDictBase:
    """Rollouts [S + F, T] of a text: S of the policy, then the first with each free decision flipped."""
    num_steps = ids.shape[1] - 1
    base, lags = model.boundary_terms(model.encode(ids)[:, :-1])  # [1, T], [1, T, w]
    uniforms = torch.rand(rows_per_text, num_steps, generator=generator, device=ids.device)

    def sample(uniforms: Tensor, forced: Tensor | None = None) -> Tensor:
        rows = len(uniforms)
        terms = base.expand(rows, -1).contiguous(), lags.expand(rows, -1, -1).contiguous()
        return sample_boundaries(*terms, uniforms=uniforms, cap=model.boundary_cap, forced=forced)

    drawn = sample(uniforms)
    forced = torch.diag_embed((~drawn[0]).long() + 1) - 1  # -1 is free
    flipped = sample(uniforms[:1].expand(num_steps - 1, -1).contiguous(), forced[1:])
    return roll_out_strings(model, ids, torch.cat((drawn, flipped))[None])[0]


def _other_rows(model: UNet, ids: Tensor, generator: torch.Generator) -> TensorDictBase:
    """Rollouts [B - 1, T] of other texts."""
    terms = model.boundary_terms(model.encode(ids)[:, :-1])
    drawn = sample_boundaries(*terms, generator=generator, cap=model.boundary_cap)
    rollout = roll_out_strings(model, ids, drawn.unsqueeze(1))[:, 0]
    rollout.names = [None, "time"]
    return rollout


def _judge(candidate: Candidate, rollout: TensorDictBase, shown: Tensor, num_rows: int, price: float) -> Tensor:
    """Advantages [1 + F, T] of the shown rows, each in a batch with the text's other rows and other texts."""
    judge, estimator = replace(candidate, learn=None), candidate.estimator
    training = isinstance(estimator, nn.Module) and estimator.training
    if isinstance(estimator, nn.Module):
        estimator.eval()  # memory does not change while the flips of one batch are judged
    if candidate.extra_rows:  # these compare each row with itself
        values = judge.advantages(_batch(rollout, shown), price=price)
    else:
        first_other = len(rollout) - num_rows + 1
        beside = [*range(candidate.rows_per_text), *range(first_other, len(rollout))][:num_rows]
        batch = _batch(rollout, torch.tensor(beside, device=shown.device))
        rows = []
        for row in shown.tolist():
            batch[0] = rollout[row]
            rows.append(judge.advantages(batch, price=price)[0].clone())
        values = torch.stack(rows)
    if isinstance(estimator, nn.Module):
        estimator.train(training)
    return values


def _batch(rollout: TensorDictBase, rows: Tensor) -> TensorDictBase:
    """Some rows of a rollout."""
    batch = rollout[rows]
    batch.names = [None, "time"]
    return batch


def credit_rows(
    credit: DecisionCredit, model: UNet, candidates: Sequence[Candidate], *, num_rows: int = 16
) -> list[CreditRow]:
    """Summarise the bias and noise of every candidate; ``num_rows`` are those of a batch, for the cost."""
    free = credit.worth.shape[1]
    rate = (1 + float(credit.probs.mean(0).sum())) / (free + 1)
    num_bytes = num_rows * (free + 1)
    rows = []
    for candidate in candidates:
        wrong = signal_to_noise(credit.differences(candidate.name) - credit.worth)
        square, error = wrong.signal / free, wrong.signal_error / free
        bias, deviation = math.sqrt(max(square, 0.0)), float(credit.deviation(candidate.name).square().mean().sqrt())
        agreement = _correlation(credit, credit.estimates[candidate.name])
        rows.append(
            CreditRow(
                candidate.name,
                bias=bias,
                bias_error=error / (2 * bias) if square > 2 * error else math.nan,
                bias_limit=math.sqrt(max(square, 0.0) + 2 * error),
                deviation=deviation,
                rmse=math.hypot(bias, deviation),
                correlation=agreement[0],
                correlation_error=agreement[1],
                cost=candidate.flops(model, num_rows, free + 1, rate)
                / update_flops(model, num_bytes, rate * num_bytes),
            )
        )
    return rows


def _correlation(credit: DecisionCredit, estimates: Tensor) -> tuple[float, float]:
    """Correlation of estimates [K, 2, F] with the truth, and its standard error over draws; nan if one is constant."""
    truth = credit.worth.mean(0).expand(estimates.shape)
    if not float(estimates.std()) * float(truth.std()) > 0:
        return math.nan, math.nan
    draws = torch.arange(len(estimates))[:, None, None].expand(estimates.shape)
    return correlation(estimates.cpu(), truth.cpu(), groups=draws)
