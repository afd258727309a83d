"""The byte stream and its language model as a TorchRL environment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rltok_rl.envs.parallel import check_action_values, parallel_rollout
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from rltok_rl.data.given import given_windows
from rltok_rl.data.source import TextSource
from rltok_rl.data.windows import Places, Windows, WindowSource
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.rewards import REWARDS, charge_boundaries, prediction_entropy
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.incremental import decide, observe
from rltok_rl.models.level import SecondDecisions
from rltok_rl.models.tokens import Layout, as_packing
from rltok_rl.models.unet import UNet
from rltok_rl.utils import check_count

Texts = str | bytes | Sequence[str | bytes]


class ByteBoundaryEnv(EnvBase):
    """Read text byte by byte and decide after each whether a token ends.

    ### Description
    The world is a window of text and a byte-level U-Net that reads it. After each byte the agent decides whether to
    draw a token boundary. The U-Net then predicts the next byte, the prediction is paid for, and the byte is revealed.
    The agent cannot change the text; it changes how well the text is predicted.

    ### Action space
    ``Categorical(2)``, int64 of the batch's shape: 1 draws a boundary after the current byte. At the first byte of a
    text a boundary is drawn whatever the action (``forced`` is True there): a text needs a first token.

    ### Observation space
    | key | shape | dtype | range | meaning |
    |---|---|---|---|---|
    | ``byte`` | [*B] | int64 | 0 .. 255 | the current byte x_t |
    | ``recent`` | [*B, w] | int8 | 0, 1 | boundaries before it, a_{t-1} .. a_{t-w} |
    | ``position`` | [*B, 1] | int64 | 0 .. num_steps | bytes since the text began |
    | ``forced`` | [*B] | bool | | whether a boundary is drawn here in any case |
    | ``encoder_state`` | [*B, D] | float32 | | what the encoder makes of the bytes so far, X_t |
    | ``final_log_prob`` | [*B, 1] | float32 | <= 0 | log p(x_t) under the whole model, in nats; 0 at the first byte |
    | ``early_log_prob`` | [*B, 1] | float32 | <= 0 | log p(x_t) under the early exit; 0 at the first byte |
    | ``early_entropy`` | [*B, 1] | float32 | 0 .. ln 256 | entropy of the early exit about x_{t+1}; on request |
    | ``second_boundary`` | [*B] | bool | | whether a token closed with x_{t-1} that closed a token of tokens |
    | ``second_probability`` | [*B, 1] | float32 | 0 .. 1 | how likely that was; 0 where no token closed |
    | ``target_rate`` | [*B, 1] | float32 | 0 .. 1 | boundaries per byte to aim at; of models with ``rate_embedding`` |

    ``second_boundary`` is there where the model has a second level, ``second_probability`` where that routes.

    ### Rewards
    [*B, 1], by name (``reward``), with ``price`` nats taken off for each boundary drawn:
    ``"early_exit"``: ``log p(x_{t+1}) - log p_early(x_{t+1})`` (Eq. 15); ``"log_likelihood"``: ``log p(x_{t+1})``;
    ``"entropy_relative"``: ``log p(x_{t+1}) + H(p_early)``. Rewards never carry a gradient.

    ### Starting state
    The first byte of a window drawn from ``source``, or of the text given to ``reset(text=...)``. With
    ``target_rates`` a rate is drawn for each text, uniformly in its logarithm; the model is told it.

    ### Episode end
    ``terminated`` when the last byte of a document has been revealed; ``truncated`` when ``num_steps`` decisions have
    been made before that.

    ### Arguments
    Args:
        model: the U-Net; the environment lives on its device and shares its parameters.
        source: where windows come from, or texts to make a :class:`~rltok_rl.data.TextSource` of.
        num_steps: decisions per episode; a window has one byte more.
        batch_size: ``[]`` or ``[B]``, texts that are read at the same time.
        reward: a key of :data:`~rltok_rl.functional.rewards.REWARDS`.
        price: nats per boundary.
        observe_entropy: add ``early_entropy`` to the observation.
        target_rates: (low, high) of the rates that are drawn for texts, where the model has ``rate_embedding``; None is
            the model's configured rate for all.
        layout: how :meth:`parallel_rollout` lays tokens out, ``"padded"``, ``"packed"``, or a
            :class:`~rltok_rl.models.tokens.Packing`; results are equal.
        likelihood_chunk: positions whose next-byte logits a parallel rollout holds at a time, for less memory; None
            holds all. Where something else reads them all (an entropy, a segmenter's losses) they are held.
        seed: of the text drawn; None takes one from torch's global generator. Actions have generators of their own.

    ### Two speeds
    ``step`` decodes one byte per call against a cache. :meth:`parallel_rollout` makes the same tensordict in one
    forward pass, differentiable where gradients are on; :meth:`rollout` takes that path by itself where it is the same.

    ### Version history
    v0: first version.
    """

    _batch_locked = True

    def __init__(
        self,
        model: UNet,
        source: WindowSource | Texts,
        *,
        num_steps: int,
        batch_size: Sequence[int] = (),
        reward: str = "early_exit",
        price: float = 0.0,
        observe_entropy: bool = False,
        target_rates: tuple[float, float] | None = None,
        layout: Layout = "padded",
        likelihood_chunk: int | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(model, UNet):
            raise TypeError(f"model must be a UNet, got {type(model).__name__}")
        num_steps = check_count("num_steps", num_steps)
        if isinstance(batch_size, int) or len(batch_size) > 1 or any(size < 1 for size in batch_size):
            given = batch_size if isinstance(batch_size, int) else list(batch_size)
            raise ValueError(f"batch_size must be [] or [B] with B >= 1, got {given}")
        if not (math.isfinite(price) and price >= 0):
            raise ValueError(f"price must be a finite number of at least 0, got {price}")
        if reward not in REWARDS:
            raise ValueError(f"reward must be one of {list(REWARDS)}, got {reward!r}")
        if target_rates is not None:
            target_rates = _check_rates(model, target_rates)
        as_packing(layout)
        if likelihood_chunk is not None:
            likelihood_chunk = check_count("likelihood_chunk", likelihood_chunk)
        super().__init__(device=model.embedding.weight.device, batch_size=torch.Size(batch_size))
        self.source = source if isinstance(source, WindowSource) else TextSource(source)
        self.source.check_length(num_steps + 1)
        self.__dict__["model"] = model  # not a sub-module: the environment uses the model, it does not own it
        self.num_steps, self.reward_name, self.price = num_steps, reward, price
        self.observe_entropy, self.target_rates, self.layout = observe_entropy, target_rates, layout
        self.likelihood_chunk = likelihood_chunk
        self.whole_rows = False
        """Whether every row of the last parallel rollout is one text."""
        self._rng = torch.Generator()
        self._memory: UNetCache | None = None
        self._make_specs()
        self.set_seed(seed if seed is not None else int(torch.randint(2**31 - 1, ())))

    @property
    def num_rows(self) -> int:
        """Texts read at the same time; 1 for batch size []."""
        return self.batch_size.numel()

    def _make_specs(self) -> None:
        batch, config = self.batch_size, self.model.config

        def real(*shape: int) -> Unbounded:
            return Unbounded(shape=(*batch, *shape), dtype=torch.float32, device=self.device)

        def one_of(number: int, dtype: torch.dtype, *shape: int) -> Categorical:
            return Categorical(number, shape=(*batch, *shape), dtype=dtype, device=self.device)

        def between(low: int, high: int, dtype: torch.dtype, *shape: int) -> Bounded:
            return Bounded(low, high, shape=(*batch, *shape), dtype=dtype, device=self.device)

        observation = {
            "byte": one_of(config.num_ids, torch.int64),
            "recent": between(0, 1, torch.int8, config.num_lags),
            "position": between(0, self.num_steps, torch.int64, 1),
            "forced": one_of(2, torch.bool),
            "encoder_state": real(config.width),
            "final_log_prob": real(1),
            "early_log_prob": real(1),
        }
        if self.observe_entropy:
            observation["early_entropy"] = real(1)
        if config.second_level is not None:
            observation["second_boundary"] = one_of(2, torch.bool)
        if config.second_level == "routing":
            observation["second_probability"] = real(1)
        if config.rate_embedding:
            observation["target_rate"] = between(0, 1, torch.float32, 1)
        self.observation_spec = Composite(observation, shape=batch, device=self.device)
        self.action_spec = one_of(2, torch.int64)
        self.reward_spec = real(1)
        flags = {name: one_of(2, torch.bool, 1) for name in ("done", "terminated", "truncated")}
        self.full_done_spec = Composite(flags, shape=batch, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self._rng.manual_seed(seed)

    def random_state(self) -> Tensor | dict[str, Any]:
        """Where the texts to be drawn stand.

        The random numbers that they are drawn with, [n] uint8; with a source that has a state of its own, a dict of the
        two, ``generator`` and ``source``.
        """
        source = self.source.state_dict()
        generator = self._rng.get_state()
        return {"generator": generator, "source": source} if source else generator

    def set_random_state(self, state: Tensor | Mapping[str, Any]) -> None:
        """Go on drawing texts from where :meth:`random_state` was taken; the next thing to call is ``reset``."""
        if isinstance(state, Tensor):
            state = {"generator": state, "source": {}}
        self.source.load_state_dict(state["source"])
        self._rng.set_state(state["generator"].to("cpu", torch.uint8))
        self.forget()

    # One byte at a time.

    def draw_windows(self, num_rows: int, texts: Texts | None = None) -> Windows:
        """Windows of ``num_steps + 1`` bytes for rows that start anew, from the source or from given texts."""
        length = self.num_steps + 1
        if texts is None:
            return self.source.read(self.pick_places(num_rows), length)
        return given_windows(texts, num_rows, length)

    def pick_places(self, num_rows: int) -> Places:
        """Where the next windows of the source begin."""
        self.source.check_length(self.num_steps + 1)
        return self.source.pick(num_rows, self.num_steps + 1, self._rng)

    def pick_rates(self, num_rows: int) -> Tensor | None:
        """[n] target rates of the next texts, drawn after their places; None where the model has one rate only."""
        if not self.model.config.rate_embedding:
            return None
        if self.target_rates is None:
            return torch.full((num_rows,), self.model.config.target_rate, dtype=torch.float32)
        low, high = self.target_rates
        share = torch.rand(num_rows, generator=self._rng, dtype=torch.float64)
        return (low * (high / low) ** share).float()

    @torch.no_grad()
    def _reset(
        self, tensordict: TensorDictBase | None = None, text: Texts | None = None, **unknown: Any
    ) -> TensorDictBase:
        if unknown:
            raise TypeError(f"reset takes text, got {sorted(unknown)}")
        self.check_device()
        starts = torch.ones(self.num_rows, dtype=torch.bool, device=self.device)
        if tensordict is not None and "_reset" in tensordict.keys():
            starts = tensordict.get("_reset").reshape(self.num_rows)
        rows = starts.nonzero().squeeze(1)
        if self._memory is None and len(rows) < self.num_rows:
            raise RuntimeError("reset was asked for some rows before any was reset; call reset() for all first")
        windows = self.draw_windows(len(rows), text) if len(rows) else None  # refuses texts before anything changes
        if self._memory is None:
            self._memory = self.model.new_cache(self.num_rows)
            self._byte_ids = torch.zeros(self.num_rows, self.num_steps + 1, dtype=torch.int64, device=self.device)
            self._lengths = torch.zeros(self.num_rows, dtype=torch.int64, device=self.device)
            self._ends = torch.zeros(self.num_rows, dtype=torch.bool, device=self.device)
            self._over = torch.zeros(self.num_rows, dtype=torch.bool, device=self.device)
            self._seen: dict[str, Tensor] = {}
        if windows is not None:
            self._start(rows, windows, self.pick_rates(len(rows)))
        done = torch.zeros(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        flags = {"done": done, "terminated": done.clone(), "truncated": done.clone()}
        return TensorDict({**self._observation(), **flags}, self.batch_size, device=self.device)

    def _start(self, rows: Tensor, windows: Windows, rates: Tensor | None) -> None:
        """Begin new texts in some rows and observe their first bytes."""
        assert self._memory is not None
        self._byte_ids[rows] = windows.byte_ids.to(self.device)
        self._lengths[rows] = windows.lengths.to(self.device)
        self._ends[rows] = windows.ends.to(self.device)
        self._over[rows] = False
        self._memory.reset(torch.zeros_like(self._over).index_fill(0, rows, True))
        if rates is not None:
            self._memory.set_rates(rates.to(self.device), rows)
        self._look(rows, torch.zeros(len(rows), 2, device=self.device))
        if self.model.second_level is not None:
            nothing = torch.zeros_like(self._over)
            self._note_second(rows, SecondDecisions(nothing, nothing.float()))

    def _look(self, rows: Tensor, log_probs: Tensor) -> None:
        """Observe the byte at each row's position; ``log_probs`` [n, 2] says how it was predicted, final and early."""
        assert self._memory is not None
        position = self._memory.position[rows]
        everyone = len(rows) == self.num_rows
        seen = observe(self.model, self._memory, self._byte_ids[rows, position], rows=None if everyone else rows)
        fresh = {"early_logits": seen.early_logits, "log_probs": log_probs, "encoder_state": seen.encoder_state.float()}
        for name, values in fresh.items():
            self._seen[name] = values if everyone else self._seen[name].index_copy(0, rows, values)

    def _note_second(self, rows: Tensor, said: SecondDecisions) -> None:
        """Remember, for some rows, what [B] decisions the second level made."""
        fresh = {"second_boundary": said.boundaries}
        if self.model.config.second_level == "routing" and said.probabilities is not None:
            fresh["second_probability"] = said.probabilities.float()
        for name, values in fresh.items():
            held = self._seen.get(name, values)
            self._seen[name] = held.index_copy(0, rows, values[rows])

    def _observation(self) -> dict[str, Tensor]:
        cache, seen = self._memory, self._seen
        assert cache is not None
        rows = torch.arange(self.num_rows, device=self.device)
        observation = {
            "byte": self._byte_ids[rows, cache.position],
            "recent": cache.recent.to(torch.int8),
            "position": cache.position[:, None].clone(),  # a later reset writes into the cache
            "forced": cache.position == 0,
            "encoder_state": seen["encoder_state"],
            "final_log_prob": seen["log_probs"][:, :1],
            "early_log_prob": seen["log_probs"][:, 1:],
        }
        if self.observe_entropy:
            observation["early_entropy"] = prediction_entropy(seen["early_logits"])[:, None]
        if "second_boundary" in seen:
            observation["second_boundary"] = seen["second_boundary"]
        if "second_probability" in seen:
            observation["second_probability"] = seen["second_probability"][:, None]
        if cache.target_rate is not None:
            observation["target_rate"] = cache.target_rate[:, None].clone()  # those handed out share nothing
        return {name: values.reshape((*self.batch_size, *values.shape[1:])) for name, values in observation.items()}

    @torch.no_grad()
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action", None)
        if action is None:
            raise KeyError(f"step reads 'action', got only {sorted(map(str, tensordict.keys()))}")
        self._check_action(action)
        cache = self._memory
        if cache is None:
            raise RuntimeError("step was called before reset; call reset() first")
        if bool(self._over.any()):
            over = self._over.nonzero().flatten().tolist()
            raise RuntimeError(f"step was called after the end of the episode in rows {over}; call reset() first")
        boundaries = action.reshape(self.num_rows).bool() | (cache.position == 0)
        early_logits = self._seen["early_logits"]
        predicted = decide(self.model, cache, boundaries)
        rows = torch.arange(self.num_rows, device=self.device)
        revealed = self._byte_ids[rows, cache.position]
        final, early = (byte_log_prob(logits, revealed).float() for logits in (predicted.final_logits, early_logits))
        reward = self.reward_of(final, early, early_logits, boundaries)
        self._look(rows, torch.stack((final, early), -1))
        if predicted.second is not None:
            self._note_second(rows, predicted.second)
        last = cache.position + 1 >= self._lengths
        terminated, truncated = last & self._ends, last & ~self._ends
        self._over = last.clone()  # a later reset writes into it, and must not reach what was handed out
        flags = {"done": last, "terminated": terminated, "truncated": truncated, "reward": reward}
        shaped = {name: values.reshape((*self.batch_size, 1)) for name, values in flags.items()}
        return TensorDict({**self._observation(), **shaped}, self.batch_size, device=self.device)

    def reward_of(self, final: Tensor, early: Tensor, early_logits: Tensor | None, boundaries: Tensor) -> Tensor:
        """Rewards [*L] of decisions from what they led to; ``early_logits`` [*L, 256] are read only if needed."""
        if self.reward_name == "entropy_relative":
            assert early_logits is not None
            entropy = prediction_entropy(early_logits)
        else:
            entropy = early
        reward = REWARDS[self.reward_name](final.detach(), early.detach(), entropy.detach())
        return charge_boundaries(reward, boundaries, self.price)

    @property
    def reads_predictions(self) -> bool:
        """Whether rewards or observations read the early exit's whole predictions."""
        return self.observe_entropy or self.reward_name == "entropy_relative"

    def check_device(self) -> None:
        """Refuse to run a model that was moved away."""
        there = self.model.embedding.weight.device
        if there != self.device:
            raise RuntimeError(
                f"model must stay on the device that the environment was made for, {self.device}, got {there}; "
                f"move the model first and make the environment then"
            )

    def _check_action(self, action: Tensor) -> None:
        if action.device != self.device:
            raise ValueError(f"action must be on the environment's device, {self.device}, got {action.device}")
        if action.shape != self.batch_size:
            raise ValueError(f"action must have shape {list(self.batch_size)}, got {list(action.shape)}")
        check_action_values(action)

    # Whole windows.

    def parallel_rollout(self, actor=None, **options: Any) -> TensorDictBase:  # type: ignore[no-untyped-def]
        """Make what ``rollout`` makes in one forward pass; see :func:`rltok_rl.envs.parallel.parallel_rollout`."""
        return parallel_rollout(self, actor, **options)

    def forget(self) -> None:
        """Drop all texts; the next thing to call is ``reset``."""
        self._memory = None

    def rollout(self, max_steps: int, policy=None, callback=None, **options: Any):  # type: ignore[no-untyped-def]
        """As :meth:`torchrl.envs.EnvBase.rollout`; in one forward pass where that gives the same tensordict.

        The fast path needs a policy that draws whole windows (``draws_windows``), no callback, room for a whole episode
        (a shorter rollout leaves a stepped environment in the middle of its texts, ready to go on), and only options
        that it knows. Anything else is stepped.
        """
        known = {"break_when_any_done", "auto_reset", "return_contiguous", "trust_policy"}
        fast = (
            getattr(policy, "draws_windows", False)
            and callback is None
            and max_steps >= self.num_steps
            and set(options) <= known
            and options.get("auto_reset", True)
        )
        if not fast:
            return super().rollout(max_steps, policy, callback, **options)
        stop = options.get("break_when_any_done")
        return self.parallel_rollout(policy, max_steps=max_steps, break_when_any_done=stop is None or stop)


def _check_rates(model: UNet, rates: tuple[float, float]) -> tuple[float, float]:
    if not model.config.rate_embedding:
        raise ValueError(f"target_rates must be None where the model has one rate (rate_embedding=False), got {rates}")
    wanted = "target_rates must be (low, high) with 0 < low <= high < 1"
    if isinstance(rates, str) or not isinstance(rates, Sequence) or len(rates) != 2:
        raise TypeError(f"{wanted}, got {rates!r}")
    if any(isinstance(rate, bool) or not isinstance(rate, (int, float)) for rate in rates):
        raise TypeError(f"{wanted}, got {rates!r}")
    low, high = float(rates[0]), float(rates[1])
    if not 0 < low <= high < 1:
        raise ValueError(f"{wanted}, got {rates}")
    return low, high
