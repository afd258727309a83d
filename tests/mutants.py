"""Sixty mutants: mistakes chosen by reading the sources alone, to measure tests that their author had not seen.

    make mutants
    python -m tests.mutants --only clip-sides flip-price

Ten for each of functional, objectives, envs, training, evaluation and segmenters. Planted and run as the bugs of
``tests.mutations`` are. Each changes results or files that a user relies on, often only in a rare branch.
"""

from __future__ import annotations

import sys

from .mutations import Bug, main

MUTANTS = (
    # functional
    Bug("group-mean-mask", "tests", "sum_and_count(groups, group_mask, dim=0)", "sum_and_count(groups, None, dim=0)"),
    Bug("running-mean-count", "tests", "decay * state.count + count", "state.count + count"),
    Bug("clip-sides", "tests", "_log1p(-low), _log1p(high)", "_log1p(-high), _log1p(low)"),
    Bug("weight-gradient", "tests", "log_weights = log_probs.detach()", "log_weights = log_probs"),
    Bug("vtrace-clips", "tests", "goes_on * lmbda * c)", "goes_on * lmbda * rho)"),
    Bug(
        "truncated-value",
        "tests",
        "done if terminated is None else terminated\n    #",
        "either(done, terminated)\n    #",
    ),
    Bug("return-of-forced", "tests", "cut(gamma, done, like=x)) * free, free)", "cut(gamma, done, like=x)), free)"),
    Bug("budget-of-later-block", "tests", "torch.where(position % block == 0, 0,", "torch.where(position == 0, 0,"),
    Bug("equal-entropies", "tests", "out &= entropies > F.pad", "out &= entropies >= F.pad"),
    Bug(
        "filter-before-temperature",
        "tests",
        "filter_logits(relative / max(temperature, 1e-30), top_k=top_k, top_p=top_p)",
        "filter_logits(relative, top_k=top_k, top_p=top_p) / max(temperature, 1e-30)",
    ),
    # objectives
    Bug("joint-mask-key", "tests", "term.loss_mask_key = key", "pass"),
    Bug("estimator-mask-key", "tests", "estimator.mask_key = key", "pass"),
    Bug("padded-decisions", "tests", "free if real is None else free & real", "free"),
    Bug(
        "controller-in-evaluation",
        "tests",
        "if self.training:\n            self.integral",
        "if True:\n            self.integral",
    ),
    Bug("entropy-sign", "tests", "-self.entropy_coeff * entropy", "self.entropy_coeff * entropy"),
    Bug("critic-mask", "tests", "error.reshape(log_probs.shape), free)", "error.reshape(log_probs.shape), None)"),
    Bug("discount-beyond-span", "tests", "self.gamma**self.span * F.pad", "self.gamma ** (self.span - 1) * F.pad"),
    Bug("flip-price", "tests", "(log_probs - self.price * flipped)", "log_probs"),
    Bug("target-critic", "tests", "params if target_params is None else target_params)", "params)"),
    Bug(
        "vtrace-time-dim", "tests", "(view.rollout.batch_size).movedim(view.time_dim, -1)", "(view.rollout.batch_size)"
    ),
    # envs
    Bug("observation-alias", "tests", "cache.position[:, None].clone()", "cache.position[:, None]"),
    Bug(
        "rates-without-seed",
        "tests",
        "(num_rows, generator=self._rng, dtype=torch.float64)",
        "(num_rows, dtype=torch.float64)",
    ),
    Bug("source-position", "tests", 'self.source.load_state_dict(state["source"])', "pass"),
    Bug("collector-position", "tests", 'load_state_dict(state_dict.get("texts", {}))', "load_state_dict({})"),
    Bug(
        "placeholder-reward",
        "tests",
        "reward[waiting], terminated[waiting], truncated[waiting] = 0.0, False, False",
        "terminated[waiting], truncated[waiting] = False, False",
    ),
    Bug("final-mask-alias", "tests", "self._over = over.copy()", "self._over = over"),
    Bug("early-bits-unit", "tests", '"early_log_prob", -math.log(2)', '"early_log_prob", -1.0'),
    Bug("episode-length", "tests", "self._returns[over], self._steps[over] = 0, 0", "self._returns[over] = 0"),
    Bug("terminated-and-truncated", "tests", '"truncated": done & ~plan.ends[:, None, None]', '"truncated": done'),
    Bug(
        "transform-order",
        "tests",
        "[*reward_transforms(env.base_env), *transforms]",
        "[*transforms, *reward_transforms(env.base_env)]",
    ),
    # training
    Bug("alarm-repeats", "tests", "== self.patience", ">= self.patience"),
    Bug("fsync-replaced-file", "tests", "partial.replace(path)\n    flush(path.parent)", "partial.replace(path)"),
    Bug("previous-checkpoint", "tests", "max(0, number - 1)", "number"),
    Bug(
        "numpy-state",
        "tests",
        "np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))",
        "pass",
    ),
    Bug("stage-factors", "tests", 'options.lr * scale * group.get("lr_factor", 1.0)', "options.lr * scale"),
    Bug(
        "stale-failure",
        "tests",
        "self.room.repeat(entry, need))\n                    self._broken = None",
        "self.room.repeat(entry, need))",
    ),
    Bug("infinite-weights", "tests", "not bool(sizes.isfinite().all())", "bool(sizes.isnan().any())"),
    Bug("reference-twice", "tests", "gain if env.relative else gain - reference", "gain - reference"),
    Bug("half-a-line", "tests", '[line for line in lines if line.endswith("\\n")]', "lines"),
    Bug("second-signal", "tests", "self._restore([signal.SIGTERM, signal.SIGINT])", "pass"),
    # evaluation
    Bug("first-byte-of-document", "tests", "at, right=True) - 1", "at, right=False) - 1"),
    Bug("forced-word-edges", "tests", "reading.boundaries, ~reading.forced", "reading.boundaries, True"),
    Bug("shared-uniforms", "tests", "before = reads.cumsum(0) - reads", "before = begins"),
    Bug("weights-of-context", "tests", "log_probs * (place + 1 >= windows.first)[:, None]", "log_probs"),
    Bug("last-of-equal-choices", "tests", "(part == part.max()).nonzero()[0]", "(part == part.max()).nonzero()[-1]"),
    Bug(
        "shifted-forced",
        "tests",
        "move_boundaries(reference.bool() & counted, shift)",
        "move_boundaries(reference.bool(), shift)",
    ),
    Bug("quantile", "tests", "math.ceil(q * count - 1e-9) - 1", "min(int(q * count), count - 1)"),
    Bug(
        "scores-of-padding",
        "tests",
        "rows[:, window.length - window.scored : window.length]",
        "rows[:, -window.scored :]",
    ),
    Bug(
        "random-rate", "tests", '(drawn - firsts) / max(1, steps - firsts) if reference == "random" else drawn', "drawn"
    ),
    Bug("windows-are-episodes", "tests", "done=forced.roll(-1)", "done=forced"),
    # segmenters
    Bug("calibrated-rate", "tests", "(count - forced) / len(decided)", "count / len(decided)"),
    Bug("threshold-dtype", "tests", "self.threshold = threshold.to(self.threshold.device)", "pass"),
    Bug("gumbel-noise", "tests", "((logits - noise) / temperature)", "((logits + noise) / temperature)"),
    Bug("weight-of-first-byte", "tests", "free = nn.functional.pad(soft[..., 1:], (1, 0))", "free = soft"),
    Bug("residual-norm", "tests", "self.residual(self.byte_norm(states))", "self.residual(states)"),
    Bug("script-of-first-byte", "tests", "scripts_of(byte_ids)[:, 1:]", "scripts_of(byte_ids[:, 1:])"),
    Bug("last-decision", "tests", "segments.boundaries)[:, :-1].sum(-1)", "segments.boundaries).sum(-1)"),
    Bug("stage-width", "tests", "total * widths[-1] / width", "total * widths[0] / width"),
    Bug("first-byte-receives", "tests", "Mixing(receive=boundaries | (position == 0))", "Mixing(receive=boundaries)"),
    Bug("stale-weights", "tests", "(folder / file).unlink(missing_ok=True)", "pass"),
)

if __name__ == "__main__":
    sys.exit(main(MUTANTS, prog="python -m tests.mutants"))
