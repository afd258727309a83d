"""The study of estimators: its candidates, its toy model, its command."""

from __future__ import annotations

import json

import pytest
import torch
from rltok_rl.experiments.studies import estimators, gradients
from rltok_rl.experiments.studies.candidates import CANDIDATES, make_candidate
from rltok_rl.experiments.studies.estimator_options import EstimatorOptions, check_options
from rltok_rl.experiments.studies.estimators import run
from rltok_rl.experiments.studies.pages import ESTIMATOR_LABELS, gradient_table, label, value_and_error
from rltok_rl.experiments.studies.shared_gain import SharedGain
from rltok_rl.experiments.studies.toy import get_toy, toy_config, train_toy

from rltok_rl.data import TextSource, local_prose
from rltok_rl.diagnostics.exact import TextRollouts
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models import UNet
from rltok_rl.objectives import TokenGain

from ..forked import run_forked

QUICK = {"num_batches": 3, "warm_up": 1, "reference_batches": 3, "num_rows": 8, "num_steps": 48, "exact_texts": 2}
QUICK |= {"exact_bytes": 5, "exact_batches": 9, "samples": 250, "judged": 8, "flip_batches": 1, "gammas": [0.5, 1.0]}


def test_candidates_estimate_what_their_names_say():
    model = UNet(toy_config())
    rollout = TextRollouts(model, TextSource(local_prose(20_000)), num_rows=8, num_steps=40, seed=0)(8)
    candidates = {name: make_candidate(name, 0.9, model, 40) for name in CANDIDATES}
    advantages = {name: candidate.advantages(rollout) for name, candidate in candidates.items()}
    flops = {name: candidate.flops(model, 8, 40, 0.2) for name, candidate in candidates.items()}
    for name, values in advantages.items():
        assert values.shape == (8, 40) and values.isfinite().all() and values.abs().max() > 0, name
        assert flops[name] >= flops["raw"] and name in ESTIMATOR_LABELS, name
    final, early = (rollout["next", name].squeeze(-1) for name in ("final_log_prob", "early_log_prob"))
    alone, relative = (discounted_return(r, 0.9) for r in (final, final - early))
    expected = {
        "raw": alone,
        "batch": alone - alone.mean(0),
        "early": relative,
        "paper": relative - relative.mean(0),
        "leave_one_out": (relative - relative.mean(0)) * 8 / 7,
        "group_mean_2": relative - relative.view(4, 2, 40).flip(1).flatten(0, 1),
        "group_mean_8": (relative - relative.mean(0)) * 8 / 7,
    }
    for name, values in expected.items():
        torch.testing.assert_close(advantages[name], values, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    critics = ("critic_td", "critic", "pooled_critic_td", "pooled_critic")
    assert [candidates[name].estimator.lmbda for name in critics] == [0.95, 1.0, 0.95, 1.0]
    for name, span in (("local_flips", 16), ("local_flips_far", 32)):
        flips = candidates[name]
        assert (flips.extra_rows, flips.estimator.num_flips, flips.estimator.span) == (3, 3, span)
    some = candidates["budgeted_flips"]
    assert (some.extra_rows, some.estimator.num_flips, some.estimator.span, some.estimator.every) == (0.5, 2, 16, 4)
    gain = candidates["token_gain"]
    assert (gain.extra_rows, gain.estimator.apart) == (1, 2)
    gains = [candidates[name] for name in ("token_gain_8", "shared_gain_4", "shared_gain_8")]
    assert [(each.extra_rows, each.rows_per_text) for each in gains] == [(8, 1), (1, 4), (1, 8)]
    for name, inputs in (("critic", model.config.width), ("pooled_critic", 3 * model.config.width + 2)):
        one_pass = 2 * (inputs * 128 + 128)
        assert candidates[name].flops_per_byte == one_pass * (2 + 4 * 3)  # values around a step, four updates


def test_passes_leave_out_every_token_once_and_rows_of_a_text_share_effects():
    model = UNet(toy_config())
    rollout = TextRollouts(model, TextSource(local_prose(20_000)), num_rows=8, num_steps=40, seed=0)(4)
    forced = rollout["forced"]
    drawn = rollout["action"].bool() & ~forced

    def advantages(seed: int = 1, **options: int) -> torch.Tensor:
        estimator = SharedGain(model, gamma=0.9, generator=torch.Generator().manual_seed(seed), **options)
        return estimator(rollout.copy())["advantage"].squeeze(-1)

    alone = TokenGain(model, gamma=0.9, apart=3, generator=torch.Generator().manual_seed(1))(rollout.copy())
    torch.testing.assert_close(advantages(apart=3), alone["advantage"].squeeze(-1))
    assert torch.equal(advantages(apart=3, num_passes=3) != 0, drawn) and not torch.equal(
        advantages(apart=3) != 0, drawn
    )
    own, shared = (advantages(apart=2, group_size=size).unflatten(0, (2, 4)) for size in (1, 4))
    ends, probs = (x.unflatten(0, (2, 4)) for x in (rollout["action"].bool() | forced, rollout["logits"].sigmoid()))
    effects = own.sum(1) / ends.sum(1).clamp(min=1)  # [texts, T]
    expected = (ends.float() - probs) * effects[:, None]
    torch.testing.assert_close(shared, expected.masked_fill(forced.unflatten(0, (2, 4)), 0.0))
    for options, message in (
        ({"num_passes": 3}, r"num_passes must lie in \[1, apart = 2\], got 3"),
        ({"every": 2, "group_size": 2}, "every must be 1 with group_size = 2, got 2"),
        ({"group_size": 3}, "group_size must divide the rows of the rollout, 8, got 3"),
        ({"group_size": 8}, "group_size must be the number of consecutive rows with one text, got 8"),
    ):
        with pytest.raises(ValueError, match=message):
            advantages(**options)


def test_wrong_options_are_refused_before_anything_is_trained(tmp_path):
    for options, message in (
        ({"estimators": ["paper", "paper"]}, r"estimators must all be different, got \['paper', 'paper'\]"),
        ({"estimators": ["best"]}, "estimators must be among .* got 'best'"),
        ({"gamma": 1.2}, r"gamma and gammas must lie in \[0, 1\], got 1.2"),
        ({"gammas": [0.5, -1.0]}, r"gamma and gammas must lie in \[0, 1\], got -1.0"),
        ({"num_batches": 2}, "num_batches must be at least 3, got 2"),
        ({"exact_batches": 8}, "exact_batches must be at least 9, got 8"),
        ({"samples": 50}, "samples must be at least 60, got 50"),
        ({"exact_bytes": 30}, "exact_bytes must be at most 16 to be enumerated, got 30"),
        ({"num_rows": 12}, "num_rows must be a multiple of 8 with these estimators, got 12"),
        ({"estimators": ["paper"], "num_rows": 6}, "num_rows must be a multiple of 4 with these estimators, got 6"),
    ):
        with pytest.raises(ValueError, match=message):
            check_options(EstimatorOptions(**options))
    with pytest.raises(ValueError, match="estimators must be among .* got 'best'"):
        make_candidate("best", 0.9, None, 10)
    for option, message in (("nun_rows=8", "nun_rows"), ("gamma=1.2", "gamma and gammas must lie in")):
        done = run_forked("rltok_rl.experiments.studies.estimators", option, f"out={tmp_path}", f"toy={tmp_path}/toy")
        assert done.returncode != 0 and message in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_reference_is_unbiased(monkeypatch):
    """A discounted reference would hide the bias of gamma."""
    references = []

    def stop(model, draw, candidates, num_batches, **options):
        references.extend(candidates)
        raise KeyboardInterrupt

    monkeypatch.setattr(gradients, "collect_gradients", stop)
    with pytest.raises(KeyboardInterrupt):
        estimators.real_part(UNet(toy_config()), TextSource(local_prose(20_000)), EstimatorOptions())
    assert [(one.estimator.gamma, one.reward, one.rows_per_text) for one in references] == [(1.0, "early_exit", 4)]


def test_a_toy_model_is_trained_once_and_saved(tmp_path, capsys):
    source = TextSource(local_prose(20_000))
    path = tmp_path / "deep" / "toy"
    model = get_toy(path, source, updates=2)
    assert "training a toy model" in capsys.readouterr().err
    loaded = get_toy(path, source, updates=2)
    assert "training" not in capsys.readouterr().err
    for other in (loaded, train_toy(source, updates=2)):  # a seed determines the model
        for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q), name


def test_the_command_writes_tables_and_figures(tmp_path):
    options = [f"{k}={json.dumps(v).replace(' ', '')}" for k, v in QUICK.items()]
    names = "estimators=[paper,group_mean_4,critic,local_flips]"
    options += [names, "updates=2", "threads=1", f"out={tmp_path}/out", f"toy={tmp_path}/toy"]
    done = run_forked("rltok_rl.experiments.studies.estimators", *options, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "out" / "estimators.json").read_text(), parse_constant=pytest.fail)  # no NaN
    assert {row["name"] for row in report["real"]["table"]} == {"paper", "group_mean_4", "critic", "local_flips"}
    assert set(report["exact"]["tables"]) == {"0.5", "1.0"}
    assert set(report["truth"]) == {"resampled", "counterfactual"}
    for truth in report["truth"].values():
        assert set(truth["correlations"]) == {"paper", "group_mean_4", "critic", "local_flips"}
        assert truth["reliability"] < 1
    assert report["options"]["num_rows"] == 8
    for name in ("signal", "gamma", "truth"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 2_500
    assert "Correlation with the counterfactual advantage" in done.stdout


def test_without_samples_there_is_no_truth_to_compare(tmp_path):
    options = {**QUICK, "exact_texts": 0, "num_rows": 4, "gammas": [1.0], "estimators": ["critic"], "updates": 2}
    options |= {"samples": 0, "flip_batches": 0}
    out = run(EstimatorOptions(**options, toy=str(tmp_path / "toy"), out=str(tmp_path / "out")), "")
    assert not (out / "truth.png").exists() and "`critic`" in (out / "estimators.md").read_text()


def test_tables_show_errors_and_no_multiples_of_noise():
    assert value_and_error(1.0, 0.0) == "1.00"
    assert label("flips") == label("local_flips") != "", "results of earlier versions"
    row = {"name": "paper", "ratio": 0.02, "error": 0.015, "cost": 1.0, "per_cost": 0.02, "per_petaflop": 1.0}
    row |= {"cosine": None, "cosine_error": None, "scale": None, "scale_error": None}
    other = {**row, "name": "local_flips", "per_cost": 2.0}
    assert "| 100 |" not in gradient_table([row, other], exact=False)
    assert "| 100 |" in gradient_table([{**row, "error": 0.005}, other], exact=False)
