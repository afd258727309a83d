"""Local flips in parts and under autocast: the advantages of one pass in float32."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from torch import Tensor

from rltok_rl.models import UNet
from rltok_rl.objectives import LocalFlips

from ..each import each
from ..training.processes import PROSE, ROWS, UPDATE, make
from .conftest import make_model, make_rollout

MODELS = {
    "plain": {},
    "rates": {"rate_embedding": True},
    "routing": {"second_level": "routing", "num_token_layers": 2},
    "smoothing": {"smoothing": "detached"},
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
    for rows in (1, 2, 5):
        parts = advantages(model, rollout, layout=layout, rows_per_pass=rows)
        torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-12)
    assert torch.equal(parts, whole), "all rows in one pass are bit for bit what they were"


@each(options=[{}, {"micro_batches": 2}, {"micro_batches": 2, "ppo": True, "policy_epochs": 2}])
def test_training_step_runs_a_micro_batch_per_pass_in_its_precision(options):
    trainer = make(estimator="local_flips", precision="bfloat16", **options)
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
    """Boundaries are random then, and nothing reads advantages, unless the loss is off-policy."""
    for ppo in (False, True):
        trainer = make(estimator="local_flips", ppo=ppo, warm_start_bytes=UPDATE, updates=2)
        totals = [update["total_flops"] - update["flops"] for update in (trainer.update(), trainer.update())]
        assert (totals[0] > 0) == ppo and totals[1] > totals[0]


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
