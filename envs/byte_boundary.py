"""The byte stream and its language model as a TorchRL environment."""

from __future__ import annotations

from typing import Any

import torch
from rltok_rl.envs.parallel import seeded_rollout
from rltok_rl.envs.text_env import TextEnv, check_action_values
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rltok_rl.data.windows import Documents, Windows
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.models.incremental import decode_bytes, read_bytes
from rltok_rl.models.level import SecondDecisions


class ByteBoundaryEnv(TextEnv):
    """Read text byte by byte and decide after each byte whether a token ends.

    A byte-level U-Net reads a window of text. After each byte the agent decides whether to draw a token boundary. The
    U-Net then predicts the next byte, the prediction is rewarded, and the byte is revealed.

    ### Action space
    ``Categorical(2)``, int64 of the batch's shape: 1 draws a boundary after the current byte. The first byte of a text
    always has a boundary (``forced`` is True there).

    ### Observation space
    | key | shape | dtype | range | meaning |
    |---|---|---|---|---|
    | ``byte`` | [*B] | int64 | 0 .. 255 | the current byte x_t; 256, the mark, at the start if the model reads one |
    | ``recent`` | [*B, w] | int8 | 0, 1 | earlier boundaries, a_{t-1} .. a_{t-w} |
    | ``position`` | [*B, 1] | int64 | 0 .. num_steps | bytes since the text began |
    | ``forced`` | [*B] | bool | | whether a boundary is drawn here for any action |
    | ``encoder_state`` | [*B, D] | float32 | | state of the encoder, X_t |
    | ``final_log_prob`` | [*B, 1] | float32 | <= 0 | log p(x_t) under the whole model, in nats; 0 at the first byte |
    | ``early_log_prob`` | [*B, 1] | float32 | <= 0 | log p(x_t) under the early exit; 0 at the first byte |
    | ``early_entropy`` | [*B, 1] | float32 | 0 .. ln 256 | entropy of the early exit's prediction; optional |
    | ``reference_reward`` | [*B, 1] | float32 | | what ``reference`` earned for x_t; 0 at the first byte; optional |
    | ``second_boundary`` | [*B] | bool | | second level: whether the token before x_t ended a token of tokens |
    | ``second_probability`` | [*B, 1] | float32 | 0 .. 1 | its probability if the level routes; 0 if no token ended |
    | ``target_rate`` | [*B, 1] | float32 | 0 .. 1 | target boundaries per byte; of models with ``rate_embedding`` |

    ### Rewards
    [*B, 1], by name (``reward``), minus ``price`` nats for each boundary:
    ``"early_exit"``: ``log p(x_{t+1}) - log p_early(x_{t+1})`` (Eq. 15); ``"log_likelihood"``: ``log p(x_{t+1})``;
    ``"entropy_relative"``: ``log p(x_{t+1}) + H(p_early)``; ``"relative"``: ``"early_exit"`` minus the reference's; or
    a custom function. Rewards never carry a gradient.

    ### Reference
    Returns differ between texts as well as between policies. ``reward="relative"`` subtracts, step by step, what a
    reference policy earns on the same text, its ``price`` included. No action changes these rewards, so the expected
    policy gradient stays the same. They cost a second decoding (token layers, decoder, final head) of the same encoder
    states without gradients per parallel rollout, and a forward pass of the window per stepped text, at its reset.

    ### Episodes
    An episode begins with the first byte of a window drawn from ``source``, or of the text in ``reset(text=...)``; of
    models with ``begin_of_text``, with the mark before it. With ``target_rates``, each text has a rate, drawn
    log-uniformly and given to the model. An episode is ``terminated`` when the last byte of a document has been
    revealed, else ``truncated`` after ``num_steps`` decisions.

    ### Two speeds
    ``step`` decodes one byte per call with a cache. :meth:`parallel_rollout` makes the same tensordict in one forward
    pass, differentiable with gradients on; :meth:`rollout` uses it automatically when the result is the same.

    Args:
        model: the U-Net; the environment uses its device and shares its parameters.
        source: a source of windows, or texts for a :class:`~rltok_rl.data.TextSource`.
        num_steps: decisions per episode; a window has one byte more, or as many with ``begin_of_text``.
        batch_size: ``[]`` or ``[B]``, texts that are read at the same time.
        reward: a key of :data:`~rltok_rl.functional.rewards.REWARDS`; ``"relative"``; or a custom function or
            ``"module:function"``, checked by :func:`~rltok_rl.functional.rewards.as_reward`.
        reference: policy whose rewards are observed as ``reference_reward``: ``"uniform"``, boundaries evenly spaced at
            the target rate (the default of ``reward="relative"``), ``"never"``, ``"always"``, or a causal function or
            ``"module:function"`` of bytes [n, L] to boundaries [n, L].
        price: nats per boundary.
        observe_entropy: add ``early_entropy`` to the observation.
        target_rates: (low, high), range of the rates drawn for texts; None is the model's configured rate.
        layout: token layout of :meth:`parallel_rollout`, ``"padded"``, ``"packed"``, or a
            :class:`~rltok_rl.models.tokens.Packing`; results are equal.
        likelihood_chunk: positions whose next-byte logits a parallel rollout holds at a time, to save memory; None
            holds all, as do entropies and losses of segmenters.
        seed: seed of the texts; None draws one from torch's global generator. :meth:`set_seed` also seeds actions.
    """

    @torch.no_grad()
    def _reset(
        self, tensordict: TensorDictBase | None = None, text: Documents | None = None, **unknown: Any
    ) -> TensorDictBase:
        if unknown:
            raise TypeError(f"reset takes text, got {sorted(unknown)}")
        starts = None
        if tensordict is not None and "_reset" in tensordict.keys():
            starts = tensordict.get("_reset").reshape(self.num_rows)
        done = torch.zeros(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        flags = {"done": done, "terminated": done.clone(), "truncated": done.clone()}
        return TensorDict({**self.begin_texts(starts, text), **flags}, self.batch_size, device=self.device)

    @torch.no_grad()
    def begin_texts(self, starts: Tensor | None = None, text: Documents | None = None) -> dict[str, Tensor]:
        """Start texts in rows ``starts`` [B] bool, None for all, and return the observation of all rows.

        The core of ``reset``, for adapters that need no tensordict.
        """
        self.check_device()
        if starts is None:
            starts = torch.ones(self.num_rows, dtype=torch.bool, device=self.device)
        rows = starts.nonzero().squeeze(1)
        if self._unet_cache is None and len(rows) < self.num_rows:
            raise RuntimeError("reset was asked for some rows before any was reset; call reset() for all first")
        windows = self.draw_windows(len(rows), text) if len(rows) else None  # refuses texts before anything changes
        if self._unet_cache is None:
            self._unet_cache = self.model.new_cache(self.num_rows)
            self._byte_ids = torch.zeros(self.num_rows, self.num_steps + 1, dtype=torch.int64, device=self.device)
            self._lengths = torch.zeros_like(self._byte_ids[:, 0])
            self._ends, self._over = torch.zeros_like(starts), torch.zeros_like(starts)
            self._seen: dict[str, Tensor] = {}
            self._reference = torch.zeros(self.num_rows, self.num_steps, device=self.device)  # its rewards
        if windows is not None:
            self._start(rows, windows, self.pick_rates(len(rows)))
        return self._observation()

    def _start(self, rows: Tensor, windows: Windows, rates: Tensor | None) -> None:
        """Begin new texts in some rows and observe their first bytes."""
        cache = self._unet_cache
        assert cache is not None
        self._byte_ids[rows] = windows.byte_ids.to(self.device)
        self._lengths[rows] = windows.lengths.to(self.device)
        self._ends[rows] = windows.ends.to(self.device)
        self._over[rows] = False
        cache.reset(torch.zeros_like(self._over).index_fill(0, rows, True))
        if rates is not None:
            cache.set_rates(rates.to(self.device), rows)
        nothing = torch.zeros(len(rows), device=self.device)
        self._observe(rows, self._byte_ids[rows, 0], nothing, nothing)
        if self.has_reference:
            rewards = self.read_reference(windows, rates)  # [n, L]
            self._reference[rows, : rewards.shape[1]] = rewards
            self._keep(rows, reference_reward=nothing[:, None])
        if self.model.second_level is not None:
            none = torch.zeros_like(self._over)
            self._observe_second(rows, SecondDecisions(none, none.float()))

    def _observe(self, rows: Tensor, byte_ids: Tensor, final: Tensor, early: Tensor) -> None:
        """Read the next byte of each row, [n]; its log-likelihoods are ``final`` and ``early`` [n]."""
        assert self._unet_cache is not None
        states = read_bytes(self.model, self._unet_cache, byte_ids, rows=None if len(rows) == self.num_rows else rows)
        log_probs = {"final_log_prob": final[:, None], "early_log_prob": early[:, None]}
        self._keep(rows, byte=byte_ids, encoder_state=states.float(), **log_probs)
        if self.reads_predictions:
            self._keep(rows, early_logits=self.model.early_logits(states))

    def _observe_second(self, rows: Tensor, second: SecondDecisions) -> None:
        """Observe the [B] decisions of the second level in some rows."""
        self._keep(rows, second_boundary=second.boundaries[rows])
        if self.model.config.second_level == "routing" and second.probabilities is not None:
            self._keep(rows, second_probability=second.probabilities.float()[rows, None])

    def _keep(self, rows: Tensor, **fresh: Tensor) -> None:
        """Store the values of some rows for the observation."""
        for name, values in fresh.items():
            whole = len(rows) == self.num_rows
            self._seen[name] = values if whole else self._seen[name].index_copy(0, rows, values)

    def _observation(self) -> dict[str, Tensor]:
        """The current observation; its tensors share no memory with the environment's state."""
        cache = self._unet_cache
        assert cache is not None
        early_logits = self._seen.get("early_logits")
        # Copies: rows that go on are handed out again when others reset.
        seen = {name: values.clone() for name, values in self._seen.items() if name != "early_logits"}
        observation = {
            "byte": seen["byte"],
            "recent": cache.recent.to(torch.int8),
            "position": cache.position[:, None].clone(),
            "forced": cache.position == 0,
            **seen,
        }
        if self.observe_entropy and early_logits is not None:
            observation["early_entropy"] = prediction_entropy(early_logits)[:, None]
        if cache.target_rate is not None:
            observation["target_rate"] = cache.target_rate[:, None].clone()
        return {name: values.reshape((*self.batch_size, *values.shape[1:])) for name, values in observation.items()}

    @torch.no_grad()
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action", None)
        if action is None:
            raise KeyError(f"step reads 'action', got only {sorted(map(str, tensordict.keys()))}")
        if action.device != self.device:
            raise ValueError(f"action must be on the environment's device, {self.device}, got {action.device}")
        if action.shape != self.batch_size:
            raise ValueError(f"action must have shape {list(self.batch_size)}, got {list(action.shape)}")
        check_action_values(action)
        return TensorDict(self.apply_actions(action), self.batch_size, device=self.device)

    @torch.no_grad()
    def apply_actions(self, action: Tensor) -> dict[str, Tensor]:
        """Apply actions [*B] of 0 and 1; returns the next observation, ``reward`` and the flags of ends.

        The core of ``step``, for adapters that need no tensordict.
        """
        cache = self._unet_cache
        if cache is None:
            raise RuntimeError("step was called before reset; call reset() first")
        if bool(self._over.any()):
            over = self._over.nonzero().flatten().tolist()
            raise RuntimeError(f"step was called after the end of the episode in rows {over}; call reset() first")
        boundaries = action.reshape(self.num_rows).bool() | (cache.position == 0)
        states, early_logits = cache.encoder_state, self._seen.get("early_logits")
        decoded, second = decode_bytes(self.model, cache, boundaries)
        rows = torch.arange(self.num_rows, device=self.device)
        revealed = self._byte_ids[rows, cache.position]
        final = self.model.final_log_prob(decoded, revealed).float()
        if early_logits is None:
            early = self.model.early_log_prob(states, revealed).float()
        else:
            early = byte_log_prob(early_logits, revealed).float()
        reward = self.reward_of(final, early, early_logits, boundaries)
        if self.has_reference:
            reference = self._reference[rows, cache.position - 1]
            self._keep(rows, reference_reward=reference[:, None])
            reward = reward - reference if self.relative else reward
        self._observe(rows, revealed, final, early)
        if second is not None:
            self._observe_second(rows, second)
        last = cache.position + 1 >= self._lengths
        terminated, truncated = last & self._ends, last & ~self._ends
        self._over = last.clone()  # a later reset writes into it
        flags = {"done": last, "terminated": terminated, "truncated": truncated, "reward": reward}
        shaped = {name: values.reshape((*self.batch_size, 1)) for name, values in flags.items()}
        return {**self._observation(), **shaped}

    def parallel_rollout(self, actor=None, **options: Any) -> TensorDictBase:  # type: ignore[no-untyped-def]
        """Make the tensordict of ``rollout`` in one forward pass; see :func:`rltok_rl.envs.parallel_rollout`."""
        return seeded_rollout(self, actor, **options)

    def rollout(self, max_steps: int, policy=None, callback=None, **options: Any):  # type: ignore[no-untyped-def]
        """Roll out as :meth:`torchrl.envs.EnvBase.rollout`, in one forward pass if that gives the same tensordict.

        That takes a policy that draws whole windows (``draws_windows``), no callback, at least one whole episode (a
        shorter rollout leaves a stepped environment in the middle of its texts), and no options other than
        ``break_when_any_done``, ``auto_reset``, ``return_contiguous`` and ``trust_policy``.
        """
        known = {"break_when_any_done", "auto_reset", "return_contiguous", "trust_policy"}
        whole = max_steps >= self.num_steps and options.get("auto_reset", True)
        if not whole or callback is not None or not getattr(policy, "draws_windows", False) or set(options) - known:
            return super().rollout(max_steps, policy, callback, **options)
        stop = options.get("break_when_any_done")
        return self.parallel_rollout(policy, max_steps=max_steps, break_when_any_done=stop is None or stop)
