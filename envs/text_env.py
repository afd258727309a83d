"""Model, texts, specs and rewards of the environment; stepping and parallel rollouts build on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from rltok_rl.agents.rules import evenly_spaced
from rltok_rl.envs.reference import Reference, as_reference
from rltok_rl.envs.seeding import SeededEnv
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from rltok_rl.data.source import TextSource
from rltok_rl.data.windows import Documents, Places, Windows, WindowSource, given_windows
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.rewards import (
    RELATIVE,
    Reward,
    as_reward,
    charge_boundaries,
    function_name,
    prediction_entropy,
    reads_entropy,
)
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.tokens import Layout, as_packing
from rltok_rl.models.unet import UNet
from rltok_rl.ranges import check_number
from rltok_rl.utils import check_count


class TextEnv(SeededEnv):
    """Everything but the stepping of :class:`~rltok_rl.envs.ByteBoundaryEnv`, which documents the arguments."""

    _batch_locked = True

    def __init__(
        self,
        model: UNet,
        source: WindowSource | Documents,
        *,
        num_steps: int,
        batch_size: Sequence[int] = (),
        reward: str | Reward = "early_exit",
        reference: Reference | None = None,
        price: float = 0.0,
        observe_entropy: bool = False,
        target_rates: tuple[float, float] | None = None,
        layout: Layout = "padded",
        likelihood_chunk: int | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(model, UNet):
            raise TypeError(f"model must be a UNet, got {type(model).__name__}")
        if not isinstance(source, (WindowSource, Path, Iterable)):
            raise TypeError(
                f"source must be a source of windows, or texts for a TextSource, got {type(source).__name__}"
            )
        num_steps = check_count("num_steps", num_steps, minimum=1 + model.config.num_marks)  # at least 2 bytes of text
        if isinstance(batch_size, int) or len(batch_size) > 1 or any(size < 1 for size in batch_size):
            shown = batch_size if isinstance(batch_size, int) else list(batch_size)
            raise ValueError(f"batch_size must be [] or [B] with B >= 1, got {shown}")
        check_number("price", price, "[0, inf)")
        check_number("seed", seed, "[0, inf)", whole=True, optional=True)
        device = model.embedding.weight.device
        relative = isinstance(reward, str) and reward == RELATIVE
        function = as_reward("early_exit" if relative else reward, device=device)
        reference = "uniform" if relative and reference is None else reference
        rule = None if reference is None else as_reference(reference, model)
        as_packing(layout)
        super().__init__(device=device, batch_size=torch.Size(batch_size))
        self.source = source if isinstance(source, WindowSource) else TextSource(source)
        self.__dict__["model"] = model  # not a sub-module: the environment does not own the model
        self.num_steps = num_steps
        self.source.check_length(self.window_bytes)
        self.reward_name, self.price, self.relative = function_name(reward), price, relative
        self.has_reference = reference is not None
        self.__dict__ |= {"_reward": function, "reference_rule": rule}  # modules are not owned either
        self._reads_entropy = reads_entropy(function)
        self.observe_entropy, self.layout = observe_entropy, layout
        self.target_rates = None if target_rates is None else _check_rates(model, target_rates)
        self.likelihood_chunk = None if likelihood_chunk is None else check_count("likelihood_chunk", likelihood_chunk)
        self.whole_rows = False
        """Whether every row of the last parallel rollout is one text."""
        self._rng = torch.Generator()
        self._unet_cache: UNetCache | None = None
        self._make_specs()
        self._rng.manual_seed(seed if seed is not None else int(torch.randint(2**31 - 1, ())))

    @property
    def num_rows(self) -> int:
        """Texts that are read at the same time; 1 for batch size []."""
        return self.batch_size.numel()

    @property
    def window_bytes(self) -> int:
        """Bytes of text in a window, whose ``num_steps + 1`` ids begin with the model's mark if it reads one."""
        return self.num_steps + 1 - self.model.config.num_marks

    def _make_specs(self) -> None:
        config, flag, number = self.model.config, Categorical(2, dtype=torch.bool), Unbounded((1,))
        observation = {
            "byte": Categorical(config.num_ids, dtype=torch.int64),
            "recent": Bounded(0, 1, (config.num_lags,), dtype=torch.int8),
            "position": Bounded(0, self.num_steps, (1,), dtype=torch.int64),
            "forced": flag,
            "encoder_state": Unbounded((config.width,)),
            "final_log_prob": number,
            "early_log_prob": number,
        }
        if self.observe_entropy:
            observation["early_entropy"] = number
        if self.has_reference:
            observation["reference_reward"] = number
        if config.second_level is not None:
            observation["second_boundary"] = flag
        if config.second_level == "routing":
            observation["second_probability"] = number
        if config.rate_embedding:
            observation["target_rate"] = Bounded(0, 1, (1,), dtype=torch.float32)
        flags = {name: Categorical(2, (1,), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.observation_spec_unbatched = Composite(observation).to(self.device)
        self.action_spec_unbatched = Categorical(2, dtype=torch.int64).to(self.device)
        self.reward_spec_unbatched = number.to(self.device)
        self.full_done_spec = Composite(flags).expand(self.batch_size).to(self.device)

    def draw_windows(self, num_rows: int, texts: Documents | None = None) -> Windows:
        """Draw windows of ``num_steps + 1`` ids from the source, or cut them from ``texts``."""
        if texts is None:
            return self.mark(self.source.read(self.pick_places(num_rows), self.window_bytes))
        return self.mark(given_windows(texts, num_rows, self.window_bytes))

    def mark(self, windows: Windows) -> Windows:
        """Put the model's mark before windows of bytes, if it reads one."""
        marks = self.model.config.num_marks
        return Windows(self.model.mark(windows.byte_ids), windows.lengths + marks, windows.ends) if marks else windows

    def pick_places(self, num_rows: int) -> Places:
        """Draw where the next windows of the source begin."""
        self.source.check_length(self.window_bytes)
        return self.source.pick(num_rows, self.window_bytes, self._rng)

    def pick_rates(self, num_rows: int) -> Tensor | None:
        """Draw the target rates [n] of the next texts, after their places; None if the model has one rate only."""
        if not self.model.config.rate_embedding:
            return None
        if self.target_rates is None:
            return torch.full((num_rows,), self.model.config.target_rate, dtype=torch.float32)
        low, high = self.target_rates
        share = torch.rand(num_rows, generator=self._rng, dtype=torch.float64)
        return (low * (high / low) ** share).float()

    def forget(self) -> None:
        """Drop all texts; call ``reset`` next."""
        self._unet_cache = None

    def reward_of(self, final: Tensor, early: Tensor, early_logits: Tensor | None, boundaries: Tensor) -> Tensor:
        """Compute the rewards [*L] of decisions; ``early_logits`` [*L, 256] are read only for entropies."""
        inputs = [final.detach(), early.detach()]
        if self._reads_entropy:
            assert early_logits is not None
            inputs.append(prediction_entropy(early_logits.detach()))
        return charge_boundaries(self._reward(*inputs), boundaries, self.price)

    def predict_early(self, states: Tensor, following: Tensor) -> tuple[Tensor, Tensor | None]:
        """Log-likelihoods [n, L] of the early exit, and its logits [n, L, 256] if anything reads them."""
        if not self.reads_predictions:
            return self.model.early_log_prob(states, following, chunk=self.likelihood_chunk).float(), None
        logits = self.model.early_logits(states)
        return byte_log_prob(logits, following).float(), logits

    def read_reference(self, windows: Windows, rates: Tensor | None) -> Tensor:
        """Read whole windows; return the rewards [n, L] of the reference."""
        byte_ids = windows.byte_ids[:, : int(windows.lengths.max())].to(self.device)
        rates = None if rates is None else rates.to(self.device)
        states = self.model.encode(byte_ids, target_rate=rates)[:, :-1]
        return self.reference_rewards(byte_ids, states, *self.predict_early(states, byte_ids[:, 1:]), rates)

    @torch.no_grad()
    def reference_rewards(
        self, byte_ids: Tensor, states: Tensor, early: Tensor, early_logits: Tensor | None, rates: Tensor | None
    ) -> Tensor:
        """Decode encoder states [n, L, D] with the boundaries of the reference; return its rewards [n, L].

        ``byte_ids`` [n, L + 1] are the texts, ``rates`` [n] the target rates of a model with ``rate_embedding``.
        """
        reading, following = byte_ids[:, :-1], byte_ids[:, 1:]
        position = torch.arange(reading.shape[1], device=reading.device).expand_as(reading)
        if self.reference_rule is None:
            rate = self.model.config.target_rate if rates is None else rates[:, None]
            drawn = evenly_spaced(position[..., None], rate=rate)
        else:
            drawn = self.reference_rule(reading).bool()
        boundaries = drawn | (position == 0)
        decoded = self.model.decode_levels(states.detach(), boundaries, target_rate=rates)
        final = self.model.final_log_prob(decoded.states, following, chunk=self.likelihood_chunk).float()
        return self.reward_of(final, early, early_logits, boundaries)

    @property
    def reads_predictions(self) -> bool:
        """Whether rewards or observations read all predictions of the early exit."""
        return self.observe_entropy or self._reads_entropy

    def check_device(self) -> None:
        """Raise an error if the model was moved to another device."""
        device = self.model.embedding.weight.device
        if device != self.device:
            raise RuntimeError(
                f"model must stay on the device that the environment was made for, {self.device}, got {device}; "
                f"move the model first and make the environment then"
            )


def check_action_values(action: Tensor) -> None:
    """Require actions of 0 and 1, on the CPU only."""
    if action.device.type == "cpu":
        for wrong in action[(action != 0) & (action != 1)].tolist():
            raise ValueError(f"action must be 0 (no boundary) or 1 (boundary), got {wrong}")


def _check_rates(model: UNet, rates: tuple[float, float]) -> tuple[float, float]:
    if not model.config.rate_embedding:
        raise ValueError(f"target_rates must be None where the model has one rate (rate_embedding=False), got {rates}")
    expected = "target_rates must be (low, high) with 0 < low <= high < 1"
    if not isinstance(rates, Sequence) or [isinstance(rate, (int, float)) for rate in rates] != [True, True]:
        raise TypeError(f"{expected}, got {rates!r}")
    low, high = rates
    if not 0 < low <= high < 1:
        raise ValueError(f"{expected}, got {rates}")
    return float(low), float(high)
