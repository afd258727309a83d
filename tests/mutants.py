"""Sixty mutants: mistakes chosen by reading the sources alone, to measure tests that their author had not seen.

    make mutants
    python -m tests.mutants --only clip-sides flip-price

Ten for each of functional, objectives, envs, training, evaluation and segmenters. Planted and run as the bugs of
``tests.mutations`` are. Each changes results or files that a user relies on, often only in a rare branch.

When first planted, at least 51 of 60 were caught. These nine survived the tests of their modules, and have tests now:
equal-entropies, filter-before-temperature, critic-mask, fsync-replaced-file, reference-twice, random-rate,
last-decision, first-byte-receives and stale-weights.
"""

from __future__ import annotations

import sys

from .mutations import Bug, main

_BY_TESTS = {  # name, code, and what replaces it, by the test file that finds it
    # functional
    "laws/test_baseline_laws": (
        ("group-mean-mask", "sum_and_count(groups, group_mask, dim=0)", "sum_and_count(groups, None, dim=0)"),
        ("running-mean-count", "decay * state.count + count", "state.count + count"),
    ),
    "laws/test_objective_laws": (
        ("clip-sides", "_log1p(-low), _log1p(high)", "_log1p(-high), _log1p(low)"),
        ("weight-gradient", "log_weights = log_probs.detach()", "log_weights = log_probs"),
        ("vtrace-clips", "goes_on * lmbda * c)", "goes_on * lmbda * rho)"),
    ),
    "laws/test_return_laws": (
        ("truncated-value", "done if terminated is None else terminated\n    #", "either(done, terminated)\n    #"),
    ),
    "functional/test_episodes": (
        ("return-of-forced", "cut(gamma, done, like=x)) * free, free)", "cut(gamma, done, like=x)), free)"),
    ),
    "functional/test_boundary_rules": (
        ("budget-of-later-block", "torch.where(position % block == 0, 0,", "torch.where(position == 0, 0,"),
        ("equal-entropies", "out &= entropies > F.pad", "out &= entropies >= F.pad"),
    ),
    "functional/test_predictions": (
        (
            "filter-before-temperature",
            "filter_logits(relative / max(temperature, 1e-30), top_k=top_k, top_p=top_p)",
            "filter_logits(relative, top_k=top_k, top_p=top_p) / max(temperature, 1e-30)",
        ),
    ),
    # objectives
    "objectives/test_contracts": (
        ("joint-mask-key", "term.loss_mask_key = key", "pass"),
        ("estimator-mask-key", "estimator.mask_key = key", "pass"),
        ("entropy-sign", "-self.entropy_coeff * entropy", "self.entropy_coeff * entropy"),
    ),
    "objectives/test_losses": (
        ("padded-decisions", "free if real is None else free & real", "free"),
        ("critic-mask", "error.reshape(log_probs.shape), free)", "error.reshape(log_probs.shape), None)"),
    ),
    "objectives/test_rate": (
        (
            "controller-in-evaluation",
            "if self.training:\n            self.integral",
            "if True:\n            self.integral",
        ),
    ),
    "diagnostics/test_report": (
        ("discount-beyond-span", "self.gamma**self.span * F.pad", "self.gamma ** (self.span - 1) * F.pad"),
        ("flip-price", "(log_probs - self.price * flipped)", "log_probs"),
    ),
    "objectives/test_estimators": (
        ("target-critic", "params if target_params is None else target_params)", "params)"),
        ("vtrace-time-dim", "(view.rollout.batch_size).movedim(view.time_dim, -1)", "(view.rollout.batch_size)"),
    ),
    # envs
    "envs/test_model_options": (
        (
            "rates-without-seed",
            "(num_rows, generator=self._rng, dtype=torch.float64)",
            "(num_rows, dtype=torch.float64)",
        ),
    ),
    "envs/test_seeding": (
        ("source-position", 'self.source.load_state_dict(state["source"])', "pass"),
        ("collector-position", 'load_state_dict(state_dict.get("texts", {}))', "load_state_dict({})"),
    ),
    "envs/test_gym_autoreset": (
        ("observation-alias", "cache.position[:, None].clone()", "cache.position[:, None]"),
        (
            "placeholder-reward",
            "reward[waiting], terminated[waiting], truncated[waiting] = 0.0, False, False",
            "terminated[waiting], truncated[waiting] = False, False",
        ),
        ("final-mask-alias", "self._over = over.copy()", "self._over = over"),
    ),
    "envs/test_gym": (
        ("early-bits-unit", '"early_log_prob", -math.log(2)', '"early_log_prob", -1.0'),
        ("episode-length", "self._returns[over], self._steps[over] = 0, 0", "self._returns[over] = 0"),
    ),
    "envs/test_parallel": (
        ("terminated-and-truncated", '"truncated": done & ~plan.ends[:, None, None]', '"truncated": done'),
    ),
    "envs/test_rewards": (
        (
            "transform-order",
            "[*reward_transforms(env.base_env), *transforms]",
            "[*transforms, *reward_transforms(env.base_env)]",
        ),
    ),
    # training
    "training/test_loop": (
        ("alarm-repeats", "== self.patience", ">= self.patience"),
        ("infinite-weights", "not bool(sizes.isfinite().all())", "bool(sizes.isnan().any())"),
    ),
    "training/test_checkpoint": (
        ("fsync-replaced-file", "partial.replace(path)\n    flush(path.parent)", "partial.replace(path)"),
        ("previous-checkpoint", "max(0, number - 1)", "number"),
        ("numpy-state", "np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))", "pass"),
        ("second-signal", "self._restore([signal.SIGTERM, signal.SIGINT])", "pass"),
    ),
    "training/test_token_room": (
        (
            "stale-failure",
            "self.room.repeat(entry, need))\n                    self._broken = None",
            "self.room.repeat(entry, need))",
        ),
    ),
    "training/test_returns": (("reference-twice", "gain if env.relative else gain - reference", "gain - reference"),),
    "training/test_metrics": (("half-a-line", '[line for line in lines if line.endswith("\\n")]', "lines"),),
    # evaluation
    "evaluation/test_windowed": (
        ("forced-word-edges", "reading.boundaries, ~reading.forced", "reading.boundaries, True"),
        ("shared-uniforms", "before = reads.cumsum(0) - reads", "before = begins"),
    ),
    "evaluation/test_marginal": (
        ("first-byte-of-document", "at, right=True) - 1", "at, right=False) - 1"),
        ("weights-of-context", "log_probs * (place + 1 >= windows.first)[:, None]", "log_probs"),
    ),
    "evaluation/test_tasks": (
        ("last-of-equal-choices", "(part == part.max()).nonzero()[0]", "(part == part.max()).nonzero()[-1]"),
    ),
    "evaluation/test_agreement": (
        (
            "shifted-forced",
            "move_boundaries(reference.bool() & counted, shift)",
            "move_boundaries(reference.bool(), shift)",
        ),
    ),
    "evaluation/test_boundaries": (("quantile", "math.ceil(q * count - 1e-9) - 1", "min(int(q * count), count - 1)"),),
    "evaluation/test_continuations": (
        ("scores-of-padding", "rows[:, window.length - window.scored : window.length]", "rows[:, -window.scored :]"),
    ),
    "evaluation/test_policies": (
        ("random-rate", '(drawn - firsts) / max(1, steps - firsts) if reference == "random" else drawn', "drawn"),
    ),
    "evaluation/test_detail": (("windows-are-episodes", "done=first.begins.roll(-1)", "done=first.begins"),),
    # segmenters
    "agents/segmenters/test_by_hand": (
        ("calibrated-rate", "(count - forced) / len(decided)", "count / len(decided)"),
        ("threshold-dtype", "self.threshold = threshold.to(self.threshold.device)", "pass"),
        ("first-byte-receives", "Mixing(receive=boundaries | (position == 0))", "Mixing(receive=boundaries)"),
    ),
    "agents/segmenters/test_parity": (
        ("gumbel-noise", "((logits - noise) / temperature)", "((logits + noise) / temperature)"),
        ("weight-of-first-byte", "free = nn.functional.pad(soft[..., 1:], (1, 0))", "free = soft"),
        ("residual-norm", "self.residual(self.byte_norm(states))", "self.residual(states)"),
    ),
    "agents/segmenters/test_magnet": (
        ("script-of-first-byte", "scripts_of(byte_ids)[:, 1:]", "scripts_of(byte_ids[:, 1:])"),
    ),
    "agents/segmenters/test_grouped": (
        ("last-decision", "segments.boundaries)[:, :-1].sum(-1)", "segments.boundaries).sum(-1)"),
    ),
    "agents/segmenters/test_two_stages": (("stage-width", "total * widths[-1] / width", "total * widths[0] / width"),),
    "experiments/test_segmenting": (
        ("stage-factors", 'options.lr * scale * group.get("lr_factor", 1.0)', "options.lr * scale"),  # training
        ("stale-weights", "(folder / file).unlink(missing_ok=True)", "pass"),
    ),
}
MUTANTS = tuple(
    Bug(name, f"tests/{file}.py", old, new) for file, mutants in _BY_TESTS.items() for name, old, new in mutants
)

if __name__ == "__main__":
    sys.exit(main(MUTANTS, prog="python -m tests.mutants"))
