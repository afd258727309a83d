"""The clients in docs/clients run as written, and learn in a world whose best boundaries are known."""

from __future__ import annotations

import csv
import importlib
from types import ModuleType

import gymnasium
import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv
from torchrl.objectives.value.functional import generalized_advantage_estimate
from torchrl.record.loggers import CSVLogger

from rltok_rl.data import TextSource
from rltok_rl.data.languages import Recall
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss

from .layout import ROOT

LANGUAGE = Recall(values="01", fillers="a", shortest_gap=3, mean_gap=3.0, window=2)  # records of seven bytes
STEPS, PRICE = 21, 0.05


@pytest.fixture
def client(monkeypatch):
    """Import a client from its folder."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "clients")
    return importlib.import_module


@pytest.fixture
def ppo(client) -> ModuleType:
    return client("cleanrl_ppo")


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Of a model that has learned the language under boundaries that are random by half: it cannot know the best."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", window=2, width=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(120):
        byte_ids = LANGUAGE.draw(8, STEPS + 1).byte_ids
        chance = torch.rand(byte_ids.shape) < 0.5 * torch.rand(8, 1)
        boundaries = LANGUAGE.optimal_boundaries(byte_ids) & (torch.rand(byte_ids.shape) < 0.7) | chance
        boundaries[:, 0] = True
        out = model(byte_ids, boundaries)
        final, early = (
            logits[:, :-1].log_softmax(-1).gather(-1, byte_ids[:, 1:, None]).mean()
            for logits in (out.final_logits, out.early_logits)
        )
        optimizer.zero_grad()
        (-final - 0.3 * early).backward()
        optimizer.step()
    return model.state_dict()


@pytest.fixture
def model(weights) -> UNet:
    model = UNet(preset("tiny", window=2, width=32)).eval()
    model.load_state_dict(weights)
    return model


def changed(model: UNet, weights: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in model.state_dict().items() if not torch.equal(value, weights[name])}


def test_ppo_learns_and_repeats_itself(ppo, model, weights):
    options = {"num_envs": 128, "num_steps": STEPS, "learning_rate": 5e-3, "num_minibatches": 8}
    world = {"language": LANGUAGE, "num_steps": STEPS, "price": PRICE, "autoreset_mode": "SameStep"}

    def rows(updates: int) -> list[dict]:
        env = gymnasium.make_vec("rltok_rl/Recall-v0", num_envs=128, model=model, **world)
        return ppo.train(ppo.Args(total_steps=updates * 128 * STEPS, **options), env)

    learned = rows(13)
    first, last = learned[0], learned[-1]
    assert [row["steps"] for row in learned] == [n * 128 * STEPS for n in range(1, 14)]
    assert 0.4 < first["rate"] < 0.6 and last["rate"] < 0.4
    assert last["return"] > 1.2 * first["return"]
    assert last["bits_per_byte"] < 0.85 * first["bits_per_byte"], "fewer boundaries, and better ones"
    assert last["entropy"] < 0.6 * first["entropy"]
    assert last["explained_variance"] > 0.3 > first["explained_variance"]
    assert first["return"] == pytest.approx(STEPS * first["reward"], abs=1e-3), "each text was read to its end"
    assert not changed(model, weights), "the model is the world"
    (again,) = rows(1)
    assert {**again, "SPS": 0} == {**first, "SPS": 0}


def test_ppo_computes_advantages_and_explained_variance(ppo):
    """Ends of documents and cuts in the middle, as by the definition and by TorchRL."""
    rewards, values, next_values = torch.randn(3, 12, 4, dtype=torch.float64)
    ended, terminated = torch.rand(12, 4) < 0.3, torch.rand(12, 4) < 0.5
    terminated &= ended
    next_values[terminated] = 0.0
    advantages = ppo.advantages(rewards, values, next_values, ended, 0.9, 0.8)
    for n in range(4):
        for t in range(12):
            expected, weight = 0.0, 1.0
            for s in range(t, 12):
                expected += weight * (rewards[s, n] + 0.9 * next_values[s, n] - values[s, n])
                weight *= 0.9 * 0.8
                if ended[s, n]:
                    break
            assert advantages[t, n] == pytest.approx(float(expected), abs=1e-12)
    entries = [x.T.unsqueeze(-1) for x in (values, next_values, rewards, ended, terminated)]  # [N, T, 1]
    theirs, _ = generalized_advantage_estimate(0.9, 0.8, *entries)
    torch.testing.assert_close(theirs.squeeze(-1).T, advantages, atol=1e-5, rtol=0)  # theirs rounds to float32
    returns = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert ppo.explained_variance(returns + 5, returns) == 1.0
    assert ppo.explained_variance(torch.ones(4), returns) == 0.0
    assert ppo.explained_variance(-returns, returns) == pytest.approx(-3.0)


def test_ppo_values_a_text_that_was_cut_and_not_one_that_ended(ppo, model, monkeypatch):
    """After the end of an episode comes its own last observation; texts of one batch end in both ways."""
    seen, advantages = [], ppo.advantages
    monkeypatch.setattr(ppo, "advantages", lambda *given: (seen.append(given), advantages(*given))[1])
    env = gymnasium.make_vec(
        "rltok_rl/ByteBoundary-v0",
        num_envs=4,
        model=model,
        text=TextSource(["#0a", "#0aaa?0#1aaa?1#0aaa?0"], short_documents="whole"),
        num_steps=6,
        autoreset_mode="SameStep",
    )
    ppo.train(ppo.Args(num_envs=4, num_steps=20, total_steps=80, num_minibatches=2), env)
    ((_, values, next_values, ended, *_),) = seen
    goes_on = ~ended[:-1]
    assert torch.equal(next_values[:-1][goes_on], values[1:][goes_on])
    assert (next_values[ended] == 0).any() and (next_values[ended] != 0).any()
    assert (next_values[:-1][ended[:-1]] != values[1:][ended[:-1]]).all(), "not those of the next text"


def test_ppo_runs_from_the_command_line(ppo, tmp_path, capsys, model):
    model.save_pretrained(tmp_path / "model")
    options = f"--model {tmp_path / 'model'} --out {tmp_path / 'run'} --num-envs 4 --episode-steps 8 --num-steps 8"
    ppo.main([*options.split(), *"--total-steps 64 --no-anneal-lr --price 8.0 --hidden 8".split()])
    with (tmp_path / "run" / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["steps"] for row in rows] == ["32", "64"] and {row["learning_rate"] for row in rows} == {"0.001"}
    assert all(float(row["return"]) < 0 for row in rows), "boundaries are dear"
    assert "anneal_lr=False\n" in (tmp_path / "run" / "args.txt").read_text()
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_torchrl_trainer_teaches_the_policy_of_a_model_but_not_the_language_model(client, model, weights, tmp_path):
    make_trainer = client("torchrl_trainer").make_trainer
    world = {"num_steps": STEPS, "seed": 0}
    env = ByteBoundaryEnv(model, LANGUAGE, batch_size=(64,), price=PRICE, **world)
    logger = CSVLogger(exp_name="figures", log_dir=str(tmp_path))
    trainer = make_trainer(env, updates=15, epochs=2, learning_rate=5e-2, logger=logger)
    trainer.train()
    rewards = trainer._log_dict["reward"]
    assert len(rewards) == 15 and sum(rewards[-3:]) > 1.12 * sum(rewards[:3])
    assert trainer.collected_frames == 15 * 64 * STEPS
    assert changed(model, weights) == {"boundary_head.projection.weight"}
    lines = (tmp_path / "figures" / "scalars" / "reward.csv").read_text().splitlines()
    steps, logged = zip(*(line.split(",") for line in lines), strict=True)
    assert [int(step) for step in steps] == [n * 64 * STEPS for n in range(1, 16)]
    assert [float(value) for value in logged] == pytest.approx(rewards)
    trainer = make_trainer(ByteBoundaryEnv(model, LANGUAGE, batch_size=(16,), **world), updates=1)
    trainer.loss_module = JointLoss.paper(target_rate=0.2)
    with pytest.raises(ValueError, match="carries no gradient"):  # docs/limits.md
        trainer.train()
