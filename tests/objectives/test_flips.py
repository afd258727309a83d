"""Local flips in parts and under autocast: the advantages of one pass in float32."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from torch import Tensor

from rltok_rl.models import UNet
from rltok_rl.models.flops import trial_flops
from rltok_rl.objectives import LocalFlips
from rltok_rl.training import TrainingStep

from ..each import each
from ..training.processes import PROSE, ROWS, UPDATE, make
from .conftest import make_model, make_rollout, reader

MODELS = {
    "plain": {},
    "rates": {"rate_embedding": True},
    "routing": {"second_level": "routing", "num_token_layers": 2},
    "smoothing": {"smoothing": "detached"},
    "rates and smoothing": {"rate_embedding": True, "smoothing": "detached"},
}


def advantages(model: UNet, rollout, **options) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    flips = LocalFlips(model, gamma=0.9, num_flips=2, span=5, generator=generator, **options)
    return flips(rollout.detach().copy())["advantage"]


@each(name=MODELS, layout=["padded", "packed"])
def test_passes_of_some_rows_are_one_pass_of_all(name, layout):
    """In float64, where only the width of padding differs; the last pass has fewer rows."""
    model = make_model(**MODELS[name]).double()
    rollout = make_rollout(model, num_rows=5, num_steps=23)
    whole = advantages(model, rollout, layout=layout)
    assert torch.equal(advantages(model, rollout.select(*LocalFlips(model, gamma=0.9).in_keys), layout=layout), whole)
    for rows in (1, 2, 5):
        parts = advantages(model, rollout, layout=layout, rows_per_pass=rows)
        torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-12)
    assert torch.equal(parts, whole), "all rows in one pass are bit for bit what they were"


@each(name=MODELS, layout=["padded", "packed"], mode=["train", "eval"])
def test_rows_without_a_flip_are_the_rollout(name, layout, mode):
    """Random numbers are conditioned on its decisions: target rates, the soft cap and forced decisions are its own."""
    model = getattr(make_model(**MODELS[name]), mode)().double()
    rates = {"target_rates": (0.1, 0.6)} if "rates" in name else {}
    env = ByteBoundaryEnv(model, PROSE, num_steps=23, batch_size=(3,), seed=1, **rates)
    rollout = env.parallel_rollout(LearnedBoundaryActor(model), generator=torch.Generator().manual_seed(2)).detach()
    if rates:
        assert rollout["target_rate"].unique().numel() > 1
    flips = LocalFlips(model, gamma=0.9, num_flips=2, span=5, layout=layout)
    drawn = rollout["action"].bool() | rollout["forced"]
    nothing = torch.where(rollout["forced"], 1, -1).unsqueeze(1).expand(3, 2, 23)
    rollout["logits"] = rollout["logits"].double()
    decode, layouts = model.decode, []
    model.decode = lambda *a, layout, **options: layouts.append(layout) or decode(*a, layout=layout, **options)
    boundaries, log_probs = flips._redraw(rollout, nothing)
    assert layouts == [layout]
    assert torch.equal(boundaries, drawn.unsqueeze(1).expand(3, 2, 23))
    expected = rollout["next", "final_log_prob"].squeeze(-1).unsqueeze(1).expand(3, 2, 23)
    torch.testing.assert_close(log_probs, expected, check_dtype=False, rtol=1e-5, atol=1e-6)


def test_flips_of_several_rows_are_averaged():
    """Without lags a row is known from its flip; three rows with one each count a third."""
    model = make_model(num_lags=0)
    rollout = make_rollout(model, num_rows=2, num_steps=15).detach()
    picked, chance = torch.tensor([[[4, 8], [2, 8], [4, 13]], [[1, 7], [6, 11], [3, 9]]]), torch.rand(2, 3, 2) + 0.1

    def judged(rows: slice) -> Tensor:
        flips = LocalFlips(model, gamma=0.9, num_flips=len(range(3)[rows]), span=5, price=0.2)
        flips._choose = lambda weights: (picked[:, rows], chance[:, rows])
        return flips(rollout.copy())["advantage"].squeeze(-1)

    alone = [judged(slice(row, row + 1)) for row in range(3)]
    torch.testing.assert_close(judged(slice(0, 3)), sum(alone) / 3, rtol=1e-4, atol=1e-6)
    assert all(bool((one != 0).any()) for one in alone)


@each(span=[5, 20], price=[0.0, 0.3], asked=[0, 1])
def test_an_advantage_is_what_the_flip_of_its_decision_costs(span, price, asked):
    """Without lags no other decision changes: the text is read again with the flips, and rewards are summed one by one.

    Forced decisions are boundaries whatever was ``asked`` for. A chance of 0 is that of a block without a flip.
    """
    model = make_model(num_lags=0)
    rollout = make_rollout(model, num_rows=2, num_steps=15).detach()
    rollout["action"] = torch.where(rollout["forced"], asked, rollout["action"])
    picked = torch.tensor([[[2, 8, 14], [4, 5, 11]], [[1, 6, 10], [1, 7, 14]]])
    chance = torch.rand(2, 2, 3) + 0.1
    chance[1, 0, 1] = 0.0
    flips = LocalFlips(model, gamma=0.9, num_flips=2, span=span, price=price)
    flips._choose = lambda weights: (picked, chance)
    drawn, earned = rollout["action"].bool() | rollout["forced"], reader(model, rollout, price)
    expected, probs, kept = torch.zeros(2, 15), rollout["logits"].sigmoid(), earned(drawn)
    for trial in range(2):
        flipped = drawn.clone()
        chosen = [(b, int(picked[b, trial, i]), float(chance[b, trial, i])) for b in range(2) for i in range(3)]
        for row, t, q in chosen:
            flipped[row, t] ^= q > 0
        lost = kept - earned(flipped)
        for row, t, q in chosen:
            total = sum(0.9 ** (s - t) * lost[row, s] for s in range(t, min(t + span, 15)))
            taken = probs[row, t] if drawn[row, t] else 1 - probs[row, t]
            expected[row, t] += taken / (2 * q) * total if q else 0.0
    torch.testing.assert_close(flips(rollout)["advantage"].squeeze(-1), expected, rtol=1e-4, atol=1e-5)
    advantages = LocalFlips(model, gamma=0.9, num_flips=1, span=1)(rollout)["advantage"].squeeze(-1)
    assert torch.equal(advantages != 0, ~rollout["forced"])  # which are never flipped


@each(length=[12, 10, 3])
def test_a_decision_is_flipped_as_often_as_its_weight_says(length):
    """One in each block of four, the last of which may be short; none in blocks without weight."""
    weights = torch.rand(2, length)
    weights[0, :4], weights[1, 2] = 0.0, 0.0
    flips = LocalFlips(make_model(), gamma=0.9, num_flips=4000, span=4, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    where, chance = flips._choose(weights)
    assert torch.equal(torch.get_rng_state(), state) and where.shape == (2, 4000, -(-length // 4))
    for row, block in product(range(2), range(where.shape[2])):
        own = weights[row, 4 * block : 4 * block + 4]
        places = where[row, :, block] - 4 * block
        if not own.any():
            assert not chance[row, :, block].any()
            continue
        shares = own / own.sum()
        frequencies = torch.bincount(places, minlength=len(own)) / 4000
        torch.testing.assert_close(frequencies, shares, rtol=0, atol=0.035)  # four standard errors
        torch.testing.assert_close(chance[row, :, block], shares[places])


@each(options=[{}, {"micro_batches": 2}, {"micro_batches": 2, "ppo": True, "policy_epochs": 2}])
def test_training_step_runs_a_micro_batch_per_pass_in_its_precision(options):
    trainer = make(estimator="local_flips", precision="bfloat16", **options)
    flips = trainer.loss.terms["policy"]._value_estimator
    for given, used in ((3, 3), (ROWS + 1, ROWS), (None, ROWS)):
        flips.rows_per_pass = given
        TrainingStep(trainer.env, trainer.loss, precision=torch.bfloat16)
        assert flips.rows_per_pass == used
    rows: list[int] = []
    kinds: set[torch.dtype] = set()
    final, down = trainer.model.final_log_prob, trainer.model.decoder[0].mlp.down

    def final_log_prob(states: Tensor, *rest, **more) -> Tensor:
        rows.append(len(states))
        return final(states, *rest, **more)

    trainer.model.final_log_prob = final_log_prob
    down.register_forward_hook(lambda _, inputs, out: kinds.add(out.dtype))
    trainer.update()
    parts = options.get("micro_batches", 1)
    assert rows == [ROWS] * parts + [2 * ROWS] * parts and kinds == {torch.bfloat16}
    with pytest.raises(ValueError, match="rows_per_pass must be an integer of at least 1, got 0"):
        LocalFlips(trainer.model, gamma=0.9, rows_per_pass=0)


def test_trials_of_a_warm_start_are_not_counted():
    """Nothing reads advantages then, unless the loss is off-policy."""
    for ppo in (False, True):
        trainer = make(estimator="local_flips", ppo=ppo, warm_start_bytes=UPDATE, updates=2)
        totals = [update["total_flops"] - update["flops"] for update in (trainer.update(), trainer.update())]
        assert (totals[0] > 0) == ppo and totals[1] > totals[0]


def test_flops_are_those_of_the_extra_rows_and_other_rollouts_are_refused():
    model = make_model(**MODELS["routing"])
    flips, rollout = LocalFlips(model, gamma=0.9, num_flips=3), make_rollout(model).detach()
    costs = [flips.flops(10, 6, num_second=second) for second in (None, 5)]
    assert costs == [3 * trial_flops(model, 10, 6, num_second=second) for second in (None, 5)]
    assert costs[0] != costs[1]
    with pytest.raises(ValueError, match=r"the rollout must be \[B, T\], got \[12\]"):
        flips(rollout[0])
    rollout["position"] = rollout["position"] + (torch.arange(4) >= 2).view(4, *[1] * (rollout["position"].dim() - 1))
    with pytest.raises(ValueError, match="the positions of row 2 are not 0, 1, 2"):
        flips(rollout)
    with pytest.raises(ValueError, match="layout must be"):
        LocalFlips(model, gamma=0.9, layout="dense")


@each(seed=range(3))
def test_advantages_under_bfloat16(seed):
    """Of a rollout with the same boundaries: both correlate 0.999 with float32's, and differ by a few per cent."""
    torch.manual_seed(seed)
    model, drawn = make_model(), torch.Generator().manual_seed(seed)
    found, narrow, actions = [], torch.bfloat16, None
    for precision in (None, narrow):
        env = ByteBoundaryEnv(model, PROSE, num_steps=40, batch_size=(ROWS,), seed=seed)
        with torch.autocast("cpu", narrow, enabled=precision is not None):
            draws = {"generator": drawn} if actions is None else {"actions": actions}
            rollout = env.parallel_rollout(LearnedBoundaryActor(model), **draws)
        actions = rollout["action"]
        found.append(advantages(model, rollout, precision=precision).flatten())
    wide, rounded = found
    assert torch.stack(found).corrcoef()[0, 1] > 0.999
    assert (rounded - wide).std() < 0.04 * wide.std() and (rounded - wide).std() > 0
