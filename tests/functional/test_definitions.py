"""Every function equals its definition step by step: random masks, ends and options, by value and by gradient."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional import baselines, rate
from rltok_rl.functional.budget import FORCED
from rltok_rl.functional.policy_gradient import clip_bounds

from ..each import each
from ..tools.fuzz_functions import functions, right_arguments

CALLS = 12
FUNCTIONS = functions()


def places(x: Tensor) -> Iterator[tuple[int, ...]]:
    """All indices of a tensor."""
    return itertools.product(*map(range, x.shape))


def built(like: Tensor, entry: Callable[[tuple[int, ...]], Any]) -> Tensor:
    """A tensor with the shape of ``like`` from its entries."""
    return torch.stack([torch.as_tensor(entry(i)) for i in places(like)]).reshape(like.shape)


def real(mask: Tensor | None, i: tuple[int, ...]) -> bool:
    return mask is None or bool(mask[i])


def kept(values: Tensor, mask: Tensor | None) -> Tensor:
    return values.where(torch.ones_like(values, dtype=torch.bool) if mask is None else mask, 0.0)


def mean(values: list[Tensor]) -> Tensor:
    """The mean of numbers, 0 of none."""
    return torch.stack(values).double().mean() if values else torch.zeros((), dtype=torch.float64)


def mean_of(values: Tensor, mask: Tensor | None) -> Tensor:
    return mean([values[i] for i in places(values) if real(mask, i)])


def from_the_end(x: Tensor, decay: Callable[[tuple[int, ...]], Any]) -> Tensor:
    """``G_t = x_t + c_t G_{t+1}``, one step after the other."""
    total: dict[tuple[int, ...], Tensor] = {}
    for i in reversed([*places(x)]):
        after = (*i[:-1], i[-1] + 1)
        total[i] = x[i] + (decay(i) * total[after] if after in total else 0.0)
    return built(x, total.__getitem__)


# Baselines


def relative(returns: Tensor, mask: Tensor | None, exclude_self: bool, group_size: int | None = None) -> Tensor:
    def advantage(i: tuple[int, ...]) -> Any:
        company = [
            returns[j]
            for j in places(returns)
            if j[-1] == i[-1]
            and real(mask, j)
            and not (exclude_self and j == i)
            and (group_size is None or j[0] // group_size == i[0] // group_size)
        ]
        return returns[i] - mean(company) if company and real(mask, i) else 0.0 * returns[i]

    return built(returns, advantage)


def group_mean(returns, group_size, exclude_self, mask):
    return relative(returns, mask, exclude_self, group_size)


def z_score(returns, eps, mask):
    centred = kept(returns - mean_of(returns, mask), mask)
    spread = mean_of(centred.square(), mask).sqrt()
    return 0 * returns if float(spread.detach()) < 1e-12 else centred / (spread + eps)


def running_mean(returns, state, decay, mask):
    before = built(state.total, lambda t: state.total[t] / state.count[t] if state.count[t] else state.total[t])
    rows = kept(returns.detach(), mask).reshape(-1, returns.shape[-1])
    count = torch.ones_like(rows) if mask is None else mask.double().reshape(rows.shape)
    return kept(returns - before, mask), decay * state.total + sum(rows), decay * state.count + sum(count)


def control_variate(returns, regressors, ridge, folds, mask):
    length, width = regressors.shape[-2:]
    g, z = returns.reshape(-1, length), regressors.reshape(-1, length, width)
    counted = torch.ones_like(g, dtype=torch.bool) if mask is None else mask.reshape(-1, length)
    expected = torch.zeros_like(g)
    for fold in range(folds):
        others = counted & (torch.arange(len(g)) % folds != fold)[:, None]
        if not others.any():
            continue
        centred, target = z[others] - z[others].mean(0), g[others] - g[others].mean()
        penalty = ridge * centred.square().mean(0).diag()
        slopes = torch.linalg.pinv(centred.T @ centred / len(target) + penalty) @ (centred.T @ target / len(target))
        expected[fold::folds] = (g[others].mean() + (z - z[others].mean(0)) @ slopes)[fold::folds]
    return kept(returns - expected.view(returns.shape), mask)


# Exact numbers of boundaries


def exact_count(rate, length):
    return math.ceil(Fraction(rate).limit_denominator(1000) * length)


def select_next(uniforms, position, drawn, rate, block):
    def boundary(i: tuple[int, ...]) -> bool:
        place = int(position[i]) % block
        left = exact_count(rate, block) - (int(drawn[i]) if place else 0)
        return bool(float(uniforms[i]) * (block - place) < left) or int(position[i]) == 0

    boundaries = built(uniforms, boundary)
    return boundaries, drawn.where(position % block != 0, 0) + boundaries.long()


def byte_by_byte(first: Tensor, draw: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """Strings [*B, T] of a rule that takes the position and the boundaries so far in its block."""
    drawn, out = torch.zeros(first.shape[:-1], dtype=torch.int64), []
    for t in range(first.shape[-1]):
        boundary, drawn = draw(torch.full_like(drawn, t), drawn)
        out.append(boundary)
    return torch.stack(out, -1)


def select_exactly(uniforms, rate, block):
    return byte_by_byte(uniforms, lambda at, drawn: select_next(uniforms[..., int(at.max())], at, drawn, rate, block))


def offset(position: int, drawn: int, rate: float, block: int) -> float:
    left, rest = exact_count(rate, block) - drawn, block - position % block
    if position == 0 or left >= rest:
        return FORCED
    return math.log(left / (rest - left)) if left > 0 else -FORCED


def budget_offsets(boundaries, rate, block):
    def entry(i: tuple[int, ...]) -> float:
        first = i[-1] - i[-1] % block
        return offset(i[-1], sum(int(boundaries[(*i[:-1], s)]) for s in range(first, i[-1])), rate, block)

    return built(boundaries, entry).double()


def draw_next(logits, uniforms, position, drawn, rate, block):
    before = drawn.where(position % block != 0, 0)
    offsets = built(logits, lambda i: offset(int(position[i]), int(before[i]), rate, block)).double()
    probs = (logits.detach() + offsets).sigmoid()
    boundaries = probs > 0.5 if uniforms is None else uniforms < probs
    return boundaries, before + boundaries.long(), offsets


def draw_within_budget(logits, uniforms, rate, block):
    def draw(at: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        t = int(at.max())
        here = None if uniforms is None else uniforms[..., t]
        return draw_next(logits[..., t], here, at, drawn, rate, block)[:2]

    return byte_by_byte(logits, draw)


def entropy_spikes(entropies, lags, margin):
    def entry(i: tuple[int, ...]) -> bool:
        before = [entropies[(*i[:-1], s)] for s in range(max(0, i[-1] - lags), i[-1])]
        return all(float(entropies[i]) > float(h) + margin for h in before)

    return built(entropies, entry)


def released_combined_scores(entropies, least_rise):
    def entry(i: tuple[int, ...]) -> Any:
        if i[-1] < 3:
            return entropies.new_tensor(math.inf if i[-1] < 2 else -math.inf)
        rises = float(entropies[i]) - float(entropies[(*i[:-1], i[-1] - 1)]) > least_rise
        return entropies[i] if rises else entropies.new_tensor(-math.inf)

    return built(entropies, entry)


def never_twice(candidates):
    out = torch.zeros_like(candidates)
    for i in places(candidates):
        out[i] = i[-1] == 0 or (candidates[i] and not out[(*i[:-1], i[-1] - 1)])
    return out


# Predictions


def filter_logits(logits, top_k, top_p):
    out = torch.full_like(logits, -math.inf)
    for i in places(logits[..., 0]):
        order = sorted(range(logits.shape[-1]), key=lambda v: -logits[(*i, v)].item())[:top_k]
        probs = torch.stack([logits[(*i, v)] for v in order]).softmax(0).tolist()
        for number, v in enumerate(order):
            if top_p is None or sum(probs[:number]) < top_p:
                out[(*i, v)] = logits[(*i, v)]
    return out


def prediction_entropy(logits):
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def lagged_logit(base, lags, recent, cap):
    total = base + (lags * recent).sum(-1)
    return total if cap is None else cap * torch.tanh(total / cap)


def recent_boundaries(boundaries, num_lags):
    recent = boundaries.new_zeros(*boundaries.shape, num_lags)
    for i in places(recent):
        t = i[-2] - i[-1] - 1  # lag j - 1 is j bytes ago
        recent[i] = boundaries[(*i[:-2], t)] if t >= 0 else 0
    return recent


def boundary_logits(base, lags, boundaries, cap):
    return lagged_logit(base, lags, recent_boundaries(boundaries, lags.shape[-1]), cap)


# Returns and objectives


def steps_ahead(rewards, values, next_values, gamma, done, terminated, mask):
    """Return temporal differences, and whether the sum continues after each step."""
    absorbed = done if terminated is None else terminated
    ahead = next_values if absorbed is None else next_values.where(~absorbed, 0.0)
    ended = [x for x in (done, terminated) if x is not None]
    goes_on = built(rewards, lambda i: 0.0 if any(bool(x[i]) for x in ended) else 1.0).double()
    return kept(rewards + gamma * ahead - values, mask), goes_on


def discounted_return(rewards, gamma, done, mask):
    zeros = torch.zeros_like(rewards)
    deltas, goes_on = steps_ahead(rewards, zeros, zeros, gamma, done, None, mask)
    return kept(from_the_end(deltas, lambda i: gamma * goes_on[i]), mask)


def generalized_advantage(rewards, values, next_values, gamma, lmbda, done, terminated, mask):
    deltas, goes_on = steps_ahead(rewards, values, next_values, gamma, done, terminated, mask)
    return kept(from_the_end(deltas, lambda i: gamma * lmbda * goes_on[i]), mask)


def vtrace(rewards, values, next_values, log_ratios, gamma, lmbda, rho_clip, c_clip, done, terminated, mask):
    deltas, goes_on = steps_ahead(rewards, values, next_values, gamma, done, terminated, mask)
    ratios = kept(log_ratios, mask).exp()
    rho, c = ratios.clamp(max=rho_clip), lmbda * ratios.clamp(max=c_clip)
    excess = from_the_end(rho * deltas, lambda i: gamma * goes_on[i] * c[i])
    advantages = rho * (deltas + gamma * goes_on * F.pad(excess[..., 1:], (0, 1)))
    return kept(advantages, mask), kept(values + excess, mask)


def return_sums(rewards, done, free, gamma):
    ended = built(rewards, lambda i: bool(done[i[0], i[1] :].any()))
    sums = {
        "reward": (rewards, torch.ones_like(rewards)),
        "episode_return": (rewards.where(ended, 0.0), done),
    }
    if gamma is not None:
        sums["return"] = (
            kept(discounted_return(rewards, gamma, done, None), free),
            kept(torch.ones_like(rewards), free),
        )
    return tuple(torch.stack([x.double().sum(-1) for x in parts], -1).detach() for parts in sums.values())


def clipped_ratio(log_probs, old_log_probs, advantages, clip):
    low, high = clip_bounds(clip)
    ratios = (log_probs - old_log_probs).exp()
    plain, clipped = ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages
    return plain.where(plain <= clipped, clipped)


def importance_weighted(log_probs, old_log_probs, advantages, max_weight):
    weights = (log_probs.detach() - old_log_probs).exp()
    return (weights if max_weight is None else weights.clamp(max=max_weight)) * advantages * log_probs


def natural_advantage(advantages, logits, floor, mask):
    information = kept(logits.detach(), mask).sigmoid() * kept(-logits.detach(), mask).sigmoid()
    return kept(advantages, mask) / (4 * information.where(information > floor, floor))


def disarm_advantage(differences, logits, decided, others, mask):
    probs = kept(logits.detach(), mask).sigmoid()
    chance, other = probs.where(decided, 1 - probs), (1 - probs).where(decided, probs)
    likelier = chance.where(chance > other, other)
    return (kept(differences, mask) * likelier / (2 * other)).where(decided != others, 0.0)


def effective_sample_size(log_ratios, mask):
    weights = torch.stack([log_ratios[i].exp() for i in places(log_ratios) if real(mask, i)] or [torch.ones(())])
    return (weights.sum() ** 2 / (len(weights) * weights.square().sum())).detach()


def approximate_kl(log_ratios, mask):
    return mean_of(log_ratios.exp() - 1 - log_ratios, mask).detach()


def clip_fraction(log_ratios, clip, mask):
    low, high = clip_bounds(clip)
    ratios = log_ratios.detach().exp()
    return mean_of(((ratios < 1 - low) | (ratios > 1 + high)).double(), mask)


def mean_and_spread(values, mask):
    average = mean_of(values, mask)
    return average.detach(), mean_of((values - average).square(), mask).sqrt().detach()


# Rates


def logit_pressure(logits, boundaries, target, mask):
    if not isinstance(target, Tensor):
        return mean_of(logits, mask) * (mean_of(logits.sigmoid(), mask) - target).detach()

    def pushed(i: tuple[int, ...]) -> Tensor:
        alike = target == target[i]
        return logits[i] * (mean_of(logits.sigmoid(), alike if mask is None else alike & mask) - target[i]).detach()

    return mean([pushed(i) for i in places(logits) if real(mask, i)])


def straight_through(boundaries, probs):
    return boundaries.double() + probs - probs.detach()


def load_balance(rate, mean_prob, target):
    return rate * mean_prob / target + (1 - rate) * (1 - mean_prob) / (1 - target)


def ratio_loss(logits, boundaries, target, mask):
    return load_balance(mean_of(boundaries.double(), mask), mean_of(logits.sigmoid(), mask), target)


def binomial_cost(k, n, target):
    choose = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return -(choose + k * math.log(target) + (n - k) * math.log(1 - target)) / n.clamp(min=1)


def binomial_loss(logits, boundaries, target, mask):
    drawn, costs = straight_through(boundaries, logits.sigmoid()), []
    for i in places(logits[..., 0]):
        row = [drawn[(*i, t)] for t in range(logits.shape[-1]) if real(mask, (*i, t))]
        costs += [binomial_cost(sum(row), torch.tensor(float(len(row))), target)] if row else []
    return mean(costs)


def hinge_loss(logits, boundaries, target, slack, mask):
    rate = mean_of(straight_through(boundaries, logits.sigmoid()), mask)
    return F.relu(rate - (target + slack)) + F.relu((target - slack) - rate)


def control_per_rows(logits, boundaries, target, control, rows_per_mean, mask):
    losses = []
    for first in range(0, len(logits), rows_per_mean):
        rows = slice(first, first + rows_per_mean)
        own = target[rows] if isinstance(target, Tensor) else target
        losses.append(control(logits[rows], boundaries[rows], own, mask=None if mask is None else mask[rows]))
    return mean(losses)


def controller_update(state, error, proportional, integral, limit):
    total = state.integral + error.clamp(-limit, limit)
    return total, proportional * error + integral * total


def sum_and_count(values, mask, dim):
    dims = tuple(range(values.dim())) if dim is None else dim
    count = torch.ones_like(values) if mask is None else mask.double()
    return kept(values, mask).sum(dims, keepdim=True), count.sum(dims, keepdim=True).detach()


# Routing


def routing_probability(queries, keys):
    lengths = queries.square().sum(-1).sqrt() * keys.square().sum(-1).sqrt()
    return (1 - (queries * keys).sum(-1) / lengths) / 2


def confidence(probs, boundaries):
    return 1 + straight_through(0 * probs.detach(), probs.where(boundaries, -probs))


def smooth(values, weights, fresh):
    mixed: dict[tuple[int, ...], Tensor] = {}
    for i in places(weights):
        before = mixed.get((*i[:-1], i[-1] - 1))
        rest = 0.0 if before is None or (fresh is not None and bool(fresh[i])) else (1 - weights[i]) * before
        mixed[i] = weights[i] * values[i] + rest
    return torch.stack([mixed[i] for i in places(weights)]).reshape(values.shape)


def running_script(scripts, before):
    out = torch.zeros_like(scripts)
    for i in places(scripts):
        last = out[(*i[:-1], i[-1] - 1)] if i[-1] else 0 if before is None else before[i[:-1]]
        out[i] = last if scripts[i] == -1 else scripts[i]
    return out


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "baselines.no_baseline": lambda returns, mask: kept(returns, mask),
    "baselines.batch_mean": lambda returns, mask: relative(returns, mask, exclude_self=False),
    "baselines.leave_one_out": lambda returns, mask: relative(returns, mask, exclude_self=True),
    "baselines.group_mean": group_mean,
    "baselines.per_rows": lambda returns, baseline, rows_per_mean, mask: relative(returns, mask, True, rows_per_mean),
    "baselines.z_score": z_score,
    "baselines.running_mean": running_mean,
    "control_variate.control_variate": control_variate,
    "boundary_rules.exact_count": exact_count,
    "boundary_rules.select_exactly": select_exactly,
    "boundary_rules.select_next": select_next,
    "boundary_rules.entropy_spikes": entropy_spikes,
    "boundary_rules.released_combined_scores": released_combined_scores,
    "boundary_rules.never_twice": never_twice,
    "budget.budget_offsets": budget_offsets,
    "budget.draw_within_budget": draw_within_budget,
    "budget.draw_next": draw_next,
    "budget.string_log_prob": lambda logits, boundaries: F.logsigmoid(logits.where(boundaries.bool(), -logits)),
    "decoding.filter_logits": filter_logits,
    "episodes.return_sums": return_sums,
    "episodes.ratio_moments": lambda sums: torch.stack(
        [(sums[..., 0] ** n * sums[..., 1] ** d).mean(-1) for n, d in ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2))], -1
    ),
    "likelihood.log_mean_exp": lambda log_values, dim: log_values.exp().mean(dim).log(),
    "policy.soft_cap": lambda logits, cap: cap * torch.tanh(logits / cap),
    "policy.recent_boundaries": recent_boundaries,
    "policy.lagged_logit": lagged_logit,
    "policy.boundary_logits": boundary_logits,
    "policy.boundary_log_prob": lambda logits, boundaries, forced: F.logsigmoid(
        logits.where(boundaries.bool(), -logits)
    ).where(torch.tensor(True) if forced is None else ~forced, 0.0),
    "policy.imitation_loss": lambda logits, boundaries, forced: mean_of(
        F.binary_cross_entropy_with_logits(logits, boundaries.to(logits.dtype), reduction="none").where(
            torch.tensor(True) if forced is None else ~forced, 0.0
        ),
        None,
    ),
    "policy.boundary_entropy": lambda logits, forced: prediction_entropy(
        torch.stack((logits, torch.zeros_like(logits)), -1)
    ).where(torch.tensor(True) if forced is None else ~forced, 0.0),
    "policy_gradient.clipped_ratio": clipped_ratio,
    "policy_gradient.disarm_advantage": disarm_advantage,
    "policy_gradient.importance_weighted": importance_weighted,
    "policy_gradient.natural_advantage": natural_advantage,
    "policy_gradient.score_function": lambda log_probs, advantages: log_probs * advantages,
    "policy_gradient.vtrace": vtrace,
    "policy_metrics.effective_sample_size": effective_sample_size,
    "policy_metrics.approximate_kl": approximate_kl,
    "policy_metrics.clip_fraction": clip_fraction,
    "policy_metrics.mean_and_spread": mean_and_spread,
    "rate.straight_through": straight_through,
    "rate.logit_pressure": logit_pressure,
    "rate.ratio_loss": ratio_loss,
    "rate.load_balance": load_balance,
    "rate.binomial_loss": binomial_loss,
    "rate.binomial_cost": binomial_cost,
    "rate.hinge_loss": hinge_loss,
    "rate.control_per_rows": control_per_rows,
    "rate.controller_update": controller_update,
    "rate.controlled_logits": lambda logits, coefficient, mask: coefficient * mean_of(logits, mask),
    "rate.priced_boundaries": lambda logits, price, mask: price * mean_of(logits.sigmoid(), mask),
    "reduction.zero_masked": lambda values, mask: kept(values, mask),
    "reduction.sum_and_count": sum_and_count,
    "reduction.masked_mean": mean_of,
    "reduction.loss_mean": mean_of,
    "returns.reverse_scan": lambda x, decay: from_the_end(x, lambda i: decay[i] if torch.is_tensor(decay) else decay),
    "returns.discounted_return": discounted_return,
    "returns.generalized_advantage": generalized_advantage,
    "rewards.early_exit_reward": lambda final_log_prob, early_log_prob, **_: final_log_prob - early_log_prob,
    "rewards.log_likelihood_reward": lambda final_log_prob, **_: final_log_prob,
    "rewards.entropy_relative_reward": lambda final_log_prob, early_entropy, **_: final_log_prob + early_entropy,
    "rewards.charge_boundaries": lambda rewards, boundaries, price: rewards - price * boundaries.double(),
    "rewards.prediction_entropy": prediction_entropy,
    "routing.routing_probability": routing_probability,
    "routing.confidence": confidence,
    "routing.smoothing_shares": lambda probs: probs.clamp(1e-4, 1 - 1e-4),
    "routing.smooth": smooth,
    "scripts.running_script": running_script,
}
ELSEWHERE = (
    *("boundary_rules.spacelike", "boundary_rules.spacebyte", "boundary_rules.entropy_rise"),
    *("boundary_rules.threshold_for_rate", "decoding.sample_bytes", "episodes.ratio_with_error"),
    *("likelihood.byte_log_prob", "likelihood.byte_log_prob_in_parts", "likelihood.next_byte_log_prob"),
    *("likelihood.bits_per_byte", "ngrams.ngram_hash", "reduction.row_groups", "returns.cut", "returns.either"),
    *("scripts.script_at", "scripts.scripts_of"),
)
"""Functions that other files of this folder compare with their definitions."""
FIXED = ("uniforms", "target", "entropies")
"""Arguments that take no gradient."""
WITHOUT_GRADIENT = ("control_variate.control_variate",)  # that of a pseudo-inverse is another one at the edge
ALLOWED = ("at least 2", "folds must lie", "divide the rows", "dim must", "along dim")
"""Errors of calls with too few rows, steps or dimensions."""
UNSIGNED = ("uniforms", "weights", "probs", "entropies", "n", "k", "target", "rate", "mean_prob", "decay")
"""Arguments that stay in [0, 1); other floating-point numbers are of both signs."""


def drawn(name: str, number: int) -> dict[str, Any]:
    """Draw arguments as declared, in float64, with options within the reach of the numbers."""
    dice = random.Random(f"{name} {number}")
    arguments = right_arguments(FUNCTIONS[name], dice)
    arguments.pop("process_group", None)  # definitions have none
    generator = torch.Generator().manual_seed(number)
    for key, value in arguments.items():
        if isinstance(value, Tensor) and value.dtype.is_floating_point:
            arguments[key] = value.double() if key in UNSIGNED else 4 * value.double() - 2
        elif key in ("values", "rewards", "regressors", "sums") and isinstance(value, Tensor):
            arguments[key] = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    rows = next((x[..., 0].numel() for x in arguments.values() if isinstance(x, Tensor) and x.dim()), 1)
    block = dice.randint(1, 4)
    buffers = torch.tensor([0.2, 0.3], dtype=torch.float64).unbind()  # as a loss has them
    choices: dict[str, Any] = {
        "rate": dice.randint(0, 10) / 10,
        "block": block,
        "slack": dice.choice((0.0, 0.1)),
        "eps": dice.choice((0.0, 0.5)),
        "margin": dice.uniform(-0.3, 0.3),
        "least_rise": dice.uniform(-0.5, 0.5),
        "limit": dice.choice((0.5, math.inf)),
        "exclude_self": dice.random() < 0.5,
        "folds": dice.randint(2, max(rows, 2)),
        "ridge": dice.choice((0.01, 1.0)),
        "group_size": dice.choice([g for g in range(2, rows + 1) if rows % g == 0] or [2]),
        "rows_per_mean": dice.choice(
            [g for g in range(1 + ("baseline" in arguments), rows + 1) if rows % g == 0] or [1]
        ),
        "baseline": baselines.leave_one_out,
        "price": dice.uniform(-2, 2),
        "floor": dice.choice((0.05, 0.2, 0.25)),
        "max_weight": dice.choice((None, 0.5, 2.0)),
        "clip": dice.choice((0.2, [0.1, 0.3], (0.0, 2.0), (0.999, 0.5), (1.0, 0.5), buffers)),
    }
    arguments |= {k: x for k, x in choices.items() if k in arguments and not isinstance(arguments[k], Tensor)}
    if "position" in arguments:
        shape = arguments["position"].shape
        arguments["position"] = torch.randint(3 * block, shape, generator=generator)
        arguments["drawn"] = torch.randint(block + 1, shape, generator=generator)
    if name in ("routing.smoothing_shares", "routing.confidence"):  # certain decisions too
        arguments["probs"] = (1.4 * arguments["probs"] - 0.2).clamp(0, 1)
    if isinstance(arguments.get("target"), Tensor):  # few, so that steps share them
        arguments["target"] = (3 * arguments["target"]).floor() / 4 + 0.2
    if name == "rate.control_per_rows" and not isinstance(arguments["target"], Tensor):
        arguments["control"] = dice.choice([*rate.RATE_CONTROLS.values()])
    if name == "rate.binomial_cost":
        arguments["n"] = (7 * arguments["n"]).floor()
        arguments["k"] = (arguments["k"] * (arguments["n"] + 1)).floor()
    if name == "scripts.running_script":
        arguments["scripts"] = torch.randint(-1, 4, arguments["scripts"].shape, generator=generator)
        if arguments["before"] is not None:
            arguments["before"] = torch.randint(4, arguments["before"].shape, generator=generator)
    if name == "reduction.sum_and_count":
        dims = range(-arguments["values"].dim(), arguments["values"].dim())
        choice = [d for d in dims if dice.random() < 0.5 and (d >= 0 or d + len(dims) // 2 not in dims)]
        arguments["dim"] = dice.choice((None, tuple(sorted({d % max(len(dims) // 2, 1) for d in choice})), *dims))
    if name == "rate.controller_update":
        arguments["state"] = rate.Controller(*torch.randn(2, generator=generator, dtype=torch.float64))
    elif "state" in arguments:
        total, count = 3 * torch.rand(2, len(arguments["state"].total), generator=generator, dtype=torch.float64)
        count = count.where(count > 0.5, 0.0)
        arguments["state"] = baselines.RunningMean(total * (count > 0), count)
    return arguments


def results(function: Callable[..., Any], arguments: dict[str, Any], slopes: bool) -> list[Any]:
    """What a function returns, and the gradient of a weighted sum of it by each argument."""
    given = {
        key: value.clone().requires_grad_(slopes and key not in FIXED)
        if isinstance(value, Tensor) and value.dtype.is_floating_point
        else value
        for key, value in arguments.items()
    }
    out = function(**given)
    parts = [*(out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else (out,))]
    parts = [part for item in parts for part in (item if isinstance(item, tuple) else (item,))]  # a state is several
    parts = [torch.as_tensor(part).to(torch.float64) for part in parts]
    inputs = [value for value in given.values() if isinstance(value, Tensor) and value.requires_grad]
    learned = [part for part in parts if part.requires_grad]
    if not learned:
        return [*parts, *(torch.zeros_like(x) for x in inputs)]
    weights = [torch.linspace(0.5, 1.5, part.numel(), dtype=torch.float64).view(part.shape) for part in learned]
    total = sum((w * part).where(part.isfinite(), 0.0).sum() for w, part in zip(weights, learned, strict=True))
    slopes_found = torch.autograd.grad(total, inputs, materialize_grads=True)
    return [*(part.detach() for part in parts), *slopes_found]


def narrowest(out: Any, arguments: dict[str, Any]) -> torch.dtype:
    """The dtype of a result; float64 if its arguments or itself have no floating-point tensors."""
    given = [x for x in arguments.values() if isinstance(x, Tensor) and x.is_floating_point()]
    parts = out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else (out,)
    found = {x.dtype for x in parts if isinstance(x, Tensor) and x.is_floating_point()} if given else {torch.float64}
    return min(found, key=lambda dtype: dtype.itemsize, default=torch.float64)


@each(name=DEFINITIONS)
def test_a_function_is_its_definition(name):
    function, slopes = FUNCTIONS[name], name not in WITHOUT_GRADIENT
    compared = 0
    for number in range(CALLS):
        arguments = drawn(name, number)
        try:
            ours = results(function, arguments, slopes)
            assert narrowest(function(**arguments), arguments) == torch.float64
        except ValueError as error:  # too few rows to compare, or none to fit on
            assert any(words in str(error) for words in ALLOWED), error
            continue
        expected = results(DEFINITIONS[name], arguments, slopes)
        shown = {key: value for key, value in arguments.items() if not isinstance(value, Tensor)}
        torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9, msg=lambda m, s=shown: f"{s}: {m}")
        compared += 1
    assert compared >= 5


@each(
    name=[
        *("rewards.prediction_entropy", "routing.routing_probability", "policy.lagged_logit", "policy.boundary_logits"),
        *(f"policy_metrics.{name}" for name in ("effective_sample_size", "approximate_kl", "mean_and_spread")),
        *("reduction.sum_and_count", "reduction.masked_mean", "reduction.loss_mean", "rate.hinge_loss"),
    ]
)
def test_narrow_numbers_are_computed_in_float32(name):
    """The result is that of the same numbers in float64, without a rounding to eight bits on the way."""
    for number in range(CALLS):
        arguments = drawn(name, number)
        tensors = {k: x.bfloat16() for k, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()}
        ours = FUNCTIONS[name](**arguments | tensors)
        expected = DEFINITIONS[name](**arguments | {key: x.double() for key, x in tensors.items()})
        for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, expected)), strict=True):
            assert one.dtype == torch.float32
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-5)


def test_a_routing_probability_is_one():
    """Rounding would leave [0, 1] for states that point the same way, or the opposite one."""
    states = torch.randn(2000, 5)
    for keys, expected in ((states, 0.0), (-states, 1.0)):
        probs = FUNCTIONS["routing.routing_probability"](states, keys)
        assert ((probs >= 0) & (probs <= 1)).all() and (probs - expected).abs().max() < 1e-6


def test_every_function_has_a_definition():
    """Here, or in the tests named for it."""
    assert sorted(FUNCTIONS) == sorted([*DEFINITIONS, *ELSEWHERE])
