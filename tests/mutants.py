"""Three lists of sixty mistakes, chosen by reading the sources alone, to measure tests unknown to their authors.

    make mutants
    python -m tests.mutants --only clip-sides flip-price

Each list has ten for each of functional, objectives, envs, training, evaluation and segmenters. Planted and run as the
bugs of ``tests.mutations`` are. Each changes results or files that a user relies on, often only in a rare branch.

Of the first list, at least 51 of 60 were caught when first planted. These nine survived the tests of their modules, and
have tests now: equal-entropies, filter-before-temperature, critic-mask, fsync-replaced-file, reference-twice,
random-rate, last-decision, first-byte-receives and stale-weights.

Of the second list, at least 53 were caught when first planted: 49 by the test files first named, four by others. These
seven survived, and have tests now: baseline-decay, ends-not-drawn, handed-out, python-seed, any-means-all,
most-entropy-mask and network-mode.

Of the third list, at least 47 of 60 were caught when first planted: 43 by the test files first named, four by others.
These thirteen survived, and have tests now: masked-regressors, ess-of-masked, log-mean-dim, vtrace-clips-swapped,
sum-of-masked, held-out-price, second-per-byte, defaults-over-options, cut-off-by-one, relative-rate, forced-unseen,
byte-128 and rounded-spacing.
"""

from __future__ import annotations

import sys

from .mutations import Bug, main

_FIRST = {  # name, code, and what replaces it, by the test file that finds it
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
_SECOND = {  # chosen later, by somebody else, in the same way; a test file may be several
    # functional
    "functional/test_predictions": (
        ("narrow-logsumexp", "- logits.to(wide(logits)).logsumexp(-1)", "- logits.logsumexp(-1)"),
        (
            "inverse-order",
            "drop = torch.zeros_like(enough_before).scatter(-1, order, enough_before)",
            "drop = enough_before.gather(-1, order)",
        ),
    ),
    "functional/test_episodes": (
        ("cut-episode", '"episode_return": (x * whole, done)', '"episode_return": (x, done)'),
    ),
    "laws/test_baseline_laws": (
        ("spread-mask", "masked_mean(deviation.square(), mask,", "masked_mean(deviation.square(), None,"),
        ("own-fold", "others = 1 - torch.eye(folds,", "others = torch.ones(folds, folds,"),
    ),
    "laws/test_objective_laws": (("row-weight-mask", "zero_masked(log_weights, mask).sum(-1,", "log_weights.sum(-1,"),),
    "models/test_mixing models/test_second_level": (
        ("smooth-across-rows", "kept = kept.masked_fill(fresh, 0.0)", "pass"),
    ),
    "functional/test_boundary_rules": (
        ("threshold-off-by-one", "float(ordered[count]) if count", "float(ordered[max(count - 1, 0)]) if count"),
    ),
    "laws/test_processes": (
        ("loss-mean-world", "(total * dist.get_world_size(process_group) / count", "(total / count"),
    ),
    # objectives
    "objectives/test_estimators": (
        ("baseline-decay", "running_mean(returns, state, decay=self.decay,", "running_mean(returns, state,"),
        (
            "target-of-next-value",
            "advantages + zero_masked(inputs[1], view.mask)",
            "advantages + zero_masked(inputs[2], view.mask)",
        ),
        (
            "hindsight-across-episodes",
            "discounted_return(x, self.gamma, done=done, mask=view.mask) for x",
            "discounted_return(x, self.gamma, mask=view.mask) for x",
        ),
    ),
    "objectives/test_contracts": (("metric-clobber", 'f"{name}_{k}" if k in used else k', "k"),),
    "objectives/test_losses": (
        ("bits-mask", "loss.detach() if whole else self.metric(nats, mask)", "self.metric(nats, None)"),
        ("ratio-metrics-mask", "**self.ratio_metrics(log_ratios, free)", "**self.ratio_metrics(log_ratios, None)"),
        ("nan-advantages", "advantages = zero_masked(advantages, free)  # masked", "pass  # masked"),
    ),
    "objectives/test_rate": (
        (
            "errors-of-masked",
            "zero_masked(zero_masked(logits, mask).detach().sigmoid(), counted)",
            "zero_masked(logits, mask).detach().sigmoid()",
        ),
        (
            "ends-not-drawn",
            "logits.masked_fill(ends, RELEASED_LOGIT), boundaries | ends",
            "logits.masked_fill(ends, RELEASED_LOGIT), boundaries",
        ),
    ),
    "objectives/test_segmented objectives/test_second_level": (
        ("second-target", "target = segmenter.second_rate or model.config", "target = model.config"),
    ),
    # envs
    "envs/test_byte_boundary": (
        ("handed-out", "self._seen[name].index_copy(0, rows, values)", "self._seen[name].index_copy_(0, rows, values)"),
    ),
    "envs/test_parallel": (
        ("short-rollout", "whole = max_steps >= self.num_steps and options", "whole = options"),
        ("cut-is-done", "done = (last & plan.cut[:, None]).unsqueeze(-1)", "done = last.unsqueeze(-1)"),
    ),
    "envs/test_gym": (("forced-in-count", "drawn = bool(action) or not self._boundaries", "drawn = bool(action)"),),
    "envs/test_gym_autoreset": (("counts-across-texts", "self._counts.restart(rows)", "pass"),),
    "envs/test_task_worlds": (
        ("recent-of-now", "self._boundaries[:, t : t + LAGS]", "self._boundaries[:, t + 1 : t + 1 + LAGS]"),
    ),
    "test_begin_of_text": (("lengths-without-mark", "measured.append((lengths + marks,", "measured.append((lengths,"),),
    "test_clients envs/test_gym": (
        ("every-end-truncated", "bool(truncated[row] and not terminated[row])", "bool(over[row])"),
    ),
    "envs/test_model_options": (
        ("uniform-rates", "(low * (high / low) ** share).float()", "(low + (high - low) * share).float()"),
    ),
    # training
    "training/test_loop": (
        ("alarm-high", "min(0.95, 3 * self.target_rate)", "max(0.95, 3 * self.target_rate)"),
        ("schedule-end", "options.total_bytes + ahead,", "options.total_bytes,"),
        ("decayed-embedding", "if p.dim() >= 2 and id(p) not in embeddings]", "if p.dim() >= 2]"),
    ),
    "training/test_checkpoint": (
        ("python-seed", "random.seed(seed)\n    np.", "np."),
        ("nohup", "(name in _ENDING or signal.getsignal(number) is signal.SIG_DFL)", "True"),
    ),
    "training/test_distributed": (
        ("any-means-all", "dist.all_reduce(flags, dist.ReduceOp.MAX,", "dist.all_reduce(flags, dist.ReduceOp.MIN,"),
    ),
    "training/test_environment": (
        ("speed-of-starts", 'sum(entry["to_bytes"] - entry["from_bytes"] for', 'sum(entry["to_bytes"] for'),
    ),
    "training/test_distributed training/test_returns": (
        ("error-over-processes", "num_rows * processes.world_size)", "num_rows)"),
    ),
    "training/test_snapshots": (("error-in-nats", 'metrics["standard_error"] /= math.log(2)', "pass"),),
    "training/test_modes training/test_gradients": (
        ("warm-start-off-policy", "if warm_start and not self.off_policy else self", "if warm_start else self"),
    ),
    # evaluation
    "evaluation/test_agreement": (("pairs-across-rows", "row * (rows.shape[1] + gap)", "row * rows.shape[1]"),),
    "evaluation/test_bits": (
        (
            "equal-documents",
            "residuals = exact - exact.sum() / counts.sum() * counts",
            "residuals = exact - exact.mean()",
        ),
    ),
    "evaluation/test_boundaries": (
        (
            "most-entropy-mask",
            "drawn.probabilities.double()[drawn.counted].mean()",
            "drawn.probabilities.double().mean()",
        ),
    ),
    "evaluation/test_continuations": (
        (
            "weights-of-own-byte",
            "before = of_targets.cumsum(-1) - of_targets",
            "before = of_targets.cumsum(-1)",
        ),
    ),
    "evaluation/test_detail": (
        (
            "advantage-of-other-draw",
            "mask=(~forced).expand_as(returns))[0]",
            "mask=(~forced).expand_as(returns))[-1]",
        ),
    ),
    "evaluation/test_marginal": (
        ("weights-after-resampling", "log_weights = log_weights.masked_fill(few[:, None], 0.0)", "pass"),
    ),
    "evaluation/test_policies": (
        (
            "agent-deterministic",
            "policy.predict(observation, state, begins, deterministic)",
            "policy.predict(observation, state, begins)",
        ),
    ),
    "evaluation/test_streamed": (("streamed-begins", "reading.begins[begins] = True", "pass"),),
    "evaluation/test_windowed": (
        ("first-windows", "self.take(torch.arange(most) * len(self) // most)", "self.take(torch.arange(most))"),
    ),
    "evaluation/test_word_edges": (
        ("space-before-word", "white_space(byte_ids) & before", "white_space(byte_ids) & after"),
    ),
    # agents and segmenters
    "agents/test_agents": (
        ("collector-exploration", "with set_exploration_type(self.exploration_type):", "if True:"),
        ("critic-detach", "[_Detach()] if detach else []", "[] if detach else [_Detach()]"),
        ("carriage-return", '(byte <= ord("\\r"))', '(byte < ord("\\r"))'),
    ),
    "agents/test_network": (("network-mode", "module.training = training", "pass"),),
    "agents/segmenters/test_laws": (
        ("reach-off-by-one", "entropies), 1)[:, -1 - self._reach :]", "entropies), 1)[:, -max(self._reach, 1) :]"),
        ("round-in-training", ' or (self.evaluation == "round" and self.training)', ""),
    ),
    "agents/segmenters/test_grouped": (
        ("grouped-detach", "self.policy(states.detach() if self.detached else states)", "self.policy(states)"),
    ),
    "agents/segmenters/test_two_stages": (
        ("token-pad-stage", "inner += [] if model.token_pad is None else [model.token_pad]", "pass"),
    ),
    "agents/segmenters/test_magnet": (("script-weight", "nats + trials * binomial_cost(", "nats + binomial_cost("),),
    "agents/segmenters/test_tokenizer_rates": (
        ("merges-off-by-one", "removed[rank + 1] += times", "removed[rank] += times"),
    ),
    "diagnostics/test_report": (
        ("flip-uniforms", "fresh * probs, probs + fresh * (1 - probs)", "fresh * probs, fresh * (1 - probs)"),
    ),
    "experiments/test_segmenting": (
        ("split-kind", '"words" if isinstance(segmenter.split, WordSplit) else "pieces"', '"pieces"'),
    ),
}
_THIRD = {  # chosen later again, in the same way
    # functional
    "agents/segmenters/test_by_hand": (
        ("released-byte-2", "> least_rise) | (places == 2)", "> least_rise) | (places == 1)"),
    ),
    "functional/test_boundary_rules": (
        ("drawn-before-itself", "before = counts.cumsum(-1) - counts", "before = counts.cumsum(-1)"),
    ),
    "laws/test_baseline_laws": (
        (
            "masked-regressors",
            "(regressors if mask is None else regressors.masked_fill(~mask.unsqueeze(-1), 0.0)).double()",
            "regressors.double()",
        ),
        ("per-rows-mask", "baseline(part, mask=real) for part, real", "baseline(part) for part, real"),
    ),
    "laws/test_objective_laws": (
        ("ess-of-masked", 'kept.masked_fill(~mask, float("-inf"))', "kept.masked_fill(~mask, 0.0)"),
    ),
    "laws/test_rate_laws": (("rows-without-steps", "target), n > 0, process_group", "target), None, process_group"),),
    "functional/test_predictions": (
        ("log-mean-dim", "math.log(log_values.shape[dim])", "math.log(log_values.shape[-1])"),
    ),
    "functional/test_takes": (("narrow-ngrams", "byte_ids = byte_ids.long()", "pass"),),
    # objectives
    "objectives/test_estimators": (
        (
            "vtrace-clips-swapped",
            '"rho_clip": self.rho_clip, "c_clip": self.c_clip}',
            '"rho_clip": self.c_clip, "c_clip": self.rho_clip}',
        ),
        ("estimate-of-baseline", "target_params)[1])", "target_params)[0])"),
        (
            "baseline-in-evaluation",
            "if self.training:\n            self.total.copy_",
            "if True:\n            self.total.copy_",
        ),
        (
            "next-time-dim",
            'View(self.rollout.get("next"), self.time_dim, None)',
            'View(self.rollout.get("next"), -1, None)',
        ),
    ),
    "objectives/test_contracts": (("advantages-written", "estimator(tensordict.copy())", "estimator(tensordict)"),),
    "objectives/test_rate": (("error-limit", "**gains, limit=LARGEST_ERROR)", "**gains)"),),
    "objectives/test_losses": (
        ("largest-weight", "max_weight=self.max_weight)", "max_weight=None)"),
        ("sum-of-masked", "values = zero_masked(values, mask)", "pass"),
    ),
    "objectives/test_second_level": (("second-padding", "tokens if real is None else tokens & real", "tokens"),),
    # envs
    "envs/test_rewards": (
        ("law-at-entropy-0", "numbers[:, 0, 0] = 0.0", "numbers[:2, 0, 0] = 0.0"),  # functional
        (
            "reference-price",
            "return self.reward_of(final, early, early_logits, boundaries)",
            "return self.reward_of(final, early, early_logits, torch.zeros_like(boundaries))",
        ),
    ),
    "envs/test_byte_boundary": (("ends-alias", "self._over = last.clone()", "self._over = last"),),
    "envs/test_gym_autoreset": (
        ("rewards-of-last-text", '[int(seen["byte"])], [], []', '[int(seen["byte"])], [], self._rewards'),
        ("info-alias", "name: values.copy() for name, values", "name: values for name, values"),
    ),
    "envs/test_gym_options": (
        ("world-window", '{"window": 4, **(overrides or {})}', '{**(overrides or {}), "window": 4}'),
        ("untrained-mode", "return UNet(model).eval()", "return UNet(model)"),
    ),
    "envs/test_task_worlds": (("oldest-first", "t : t + LAGS][:, ::-1].copy()", "t : t + LAGS].copy()"),),
    "envs/test_parallel": (
        ("uniforms-of-part", "drawn[index * env.num_rows : (index + 1) * env.num_rows]", "drawn[: env.num_rows]"),
    ),
    "envs/test_seeding": (
        ("actions-generator", 'self._action_rng.set_state(state["actions"].to("cpu", torch.uint8))', "pass"),
    ),
    # training and runs
    "objectives/test_flips": (
        ("flip-forced", "(probs * (1 - probs)).masked_fill(forced, 0.0)", "probs * (1 - probs)"),  # objectives
        ("warm-start-trials", "num_bytes, *rates) if entry.tried else 0.0", "num_bytes, *rates)"),
    ),
    "training/test_speed": (("mfu-of-one", "(seconds * self.peak * self.world_size)", "(seconds * self.peak)"),),
    "experiments/test_resume": (("last-kept-update", "after + 1 if after else 0", "after if after else 0"),),
    "training/test_metrics": (
        ("broken-forgotten", "wrong if before is None else torch.maximum(before, wrong)", "wrong"),
    ),
    "training/test_loop": (
        (
            "floor-as-limit",
            "return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * way))",
            "return max(floor, 0.5 * (1 + math.cos(math.pi * way)))",
        ),
        ("second-per-byte", "second.mean() / drawn.mean()", "second.mean()"),
    ),
    "experiments/test_train": (("held-out-price", "price=config.estimator.price,", "price=0.0,"),),
    "experiments/test_crashes": (
        (
            "newest-without-lines",
            "if damage is None and (intact is None or not lost):",
            "if damage is None and intact is None:",
        ),
    ),
    "experiments/test_bpe_training": (("cached-options", "__version__, sorted(options.items())))", "__version__))"),),
    "experiments/test_custom": (
        (
            "defaults-over-options",
            '{**defaults.get(name, {}), "rows_per_mean": rows, **options}',
            '{**options, **defaults.get(name, {}), "rows_per_mean": rows}',
        ),
    ),
    # evaluation
    "experiments/test_boundaries": (("moved-to-uncounted", "shift) & counted", "shift)"),),
    "evaluation/test_windowed": (
        ("early-is-final", "document_nats(reading, reading.early_nats)", "document_nats(reading)"),
    ),
    "evaluation/test_boundaries": (("length-spread", "exact.std(correction=0)", "exact.std()"),),
    "evaluation/test_streamed": (
        ("streamed-rate", "model.new_cache(num_rows, target_rate=segmented.target_rate)", "model.new_cache(num_rows)"),
    ),
    "evaluation/test_continuations": (
        ("cut-off-by-one", "cut = lengths + num_bytes - 1 > (", "cut = lengths + num_bytes > ("),
    ),
    "evaluation/test_marginal": (
        (
            "particles-of-window",
            "torch.arange(count)) + torch.arange(num_windows)[:, None] * count",
            "torch.arange(count))",
        ),
    ),
    "evaluation/test_detail": (
        ("relative-rate", 'make_segmenter("uniform", model, rate=target_rate)', 'make_segmenter("uniform", model)'),
    ),
    "evaluation/test_policies": (
        ("forced-unseen", "(actions[:, t].bool() | forced).to(recent.dtype)", "actions[:, t].to(recent.dtype)"),
    ),
    "evaluation/test_lm_eval": (
        ("room-to-write", "prompt[-max(1, self.context - most) :]", "prompt[-self.context :]"),
    ),
    "evaluation/test_word_edges": (("byte-128", "if byte >= 128 or", "if byte > 128 or"),),
    # agents and segmenters
    "agents/segmenters/test_parity": (
        ("confidence-gradient", "torch.where(boundaries, probs, 1 - probs)", "probs"),  # functional
        ("group-of-own-byte", "count = free.cumsum(-1) - free", "count = free.cumsum(-1)"),
    ),
    "agents/test_agents": (
        ("set-truncated", "return self._maybe_set_truncated(batch)", "return batch"),  # envs
        (
            "forced-probability",
            "return probs if self.forced is None else probs.masked_fill(self.forced, 1.0)",
            "return probs",
        ),
        ("rounded-spacing", "* rate - 1e-9).ceil()", "* rate).ceil()"),
    ),
    "agents/segmenters/test_laws": (
        (
            "combined-first",
            'candidates.boundaries & ~state["drawn"] | (state["position"] == 0)',
            'candidates.boundaries & ~state["drawn"]',
        ),
        ("streamed-key", '{"query": self.query(x)}', '{"query": self.key(x)}'),
        (
            "streamed-oldest-first",
            '(segments.boundaries[:, None], state["recent"])',
            '(state["recent"], segments.boundaries[:, None])',
        ),
    ),
    "agents/segmenters/test_grouped": (
        ("spread-in-turn", "spread.repeat_interleave(group_size)", "spread.repeat(group_size)"),
    ),
    "agents/segmenters/test_magnet": (
        ("streamed-script", 'last_bytes[:, 1:], "script": script}', 'last_bytes[:, 1:], "script": state["script"]}'),
    ),
    "test_begin_of_text": (("token-after-mark", "[True, False, *starts[1:]]", "[True, *starts]"),),
    "experiments/test_segmenting": (
        ("nearest-trial", "return min(tried, key=lambda trial: abs(trial[0] - rate))[1]", "return tried[-1][1]"),
    ),
}
MUTANTS = tuple(
    Bug(name, " ".join(f"tests/{file}.py" for file in files.split()), old, new)
    for by_tests in (_FIRST, _SECOND, _THIRD)
    for files, mutants in by_tests.items()
    for name, old, new in mutants
)

if __name__ == "__main__":
    sys.exit(main(MUTANTS, prog="python -m tests.mutants"))
