"""Seeds and saved positions of the environment: which texts come next, and which actions it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from rltok_rl.envs.reward_transforms import without_transforms
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from rltok_rl.data.source import WindowSource


def seeded(roll: Callable[..., Any]) -> Callable[..., Any]:
    """Let a rollout draw from the generator of the environment, inside of any ``TransformedEnv``, if it has one."""

    @wraps(roll)
    def rollout(env: EnvBase, *args: Any, **options: Any) -> Any:
        base = without_transforms(env)
        determined = any(options.get(name) is not None for name in ("actions", "uniforms", "generator"))
        if determined or not isinstance(base, SeededEnv):
            return roll(env, *args, **options)
        with base.seeded_actions():
            return roll(env, *args, **options)

    return rollout


class SeededEnv(EnvBase):
    """An environment whose texts and actions follow its seed."""

    source: WindowSource
    _rng: torch.Generator
    _action_rng: torch.Generator | None = None  # until set_seed is called

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the texts, and the actions of ``rollout``, ``parallel_rollout`` and ``rand_action``.

        These then draw from a generator of this environment, stepped and in one pass alike; without ``set_seed`` they
        draw from torch's. A ``TransformedEnv`` draws the same. Actions drawn elsewhere (a loop around ``step``,
        TorchRL's stock collectors, several environments in a ``SerialEnv``) always come from torch's generator: call
        ``torch.manual_seed`` too. Returns the seed for another environment.
        """
        return super().set_seed(seed, static_seed)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self._rng.manual_seed(seed)
            self._action_rng = torch.Generator().manual_seed(seed)

    @contextmanager
    def seeded_actions(self) -> Iterator[None]:
        """Seed torch's generator from the environment's if :meth:`set_seed` was called, and restore it afterwards."""
        if self._action_rng is None:
            yield
            return
        seed, kind = int(torch.randint(2**63 - 1, (), generator=self._action_rng)), self.device.type
        with torch.random.fork_rng([] if kind == "cpu" else [self.device], device_type=kind):
            torch.manual_seed(seed)
            yield

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Draw random actions."""
        with self.seeded_actions():
            return super().rand_action(tensordict)

    _rollout_stop_early = seeded(EnvBase._rollout_stop_early)
    _rollout_nonstop = seeded(EnvBase._rollout_nonstop)

    def random_state(self) -> Tensor | dict[str, Any]:
        """Return the state that determines the next texts.

        The random generator's state, [n] uint8; if the source has a state too, a dict ``generator`` and ``source``.
        """
        source, generator = self.source.state_dict(), self._rng.get_state()
        return {"generator": generator, "source": source} if source else generator

    def set_random_state(self, state: Tensor | Mapping[str, Any]) -> None:
        """Restore a state of :meth:`random_state`; call ``reset`` next."""
        self._restore_texts(state)
        self.forget()

    @contextmanager
    def kept_random_state(self) -> Iterator[None]:
        """Restore the generator of texts after a block that starts given ones."""
        state = self._rng.get_state()
        try:
            yield
        finally:
            self._rng.set_state(state)

    def forget(self) -> None:
        """Drop all texts; call ``reset`` next."""
        raise NotImplementedError

    def _restore_texts(self, state: Tensor | Mapping[str, Any]) -> None:
        if isinstance(state, Tensor):
            state = {"generator": state, "source": {}}
        self.source.load_state_dict(state["source"])
        self._rng.set_state(state["generator"].to("cpu", torch.uint8))

    def get_extra_state(self) -> dict[str, Any]:
        """Return what ``state_dict`` holds: the position in the data, and the generator of actions after ``set_seed``.

        It does not hold texts that are being stepped, the model, or torch's generator. After ``load_state_dict``, rows
        finish the text that they are reading; resets and rollouts then read the texts that the saved environment would
        have read next.
        """
        actions = None if self._action_rng is None else self._action_rng.get_state()
        return {"texts": self.random_state(), "actions": actions}

    def set_extra_state(self, state: Mapping[str, Any] | None) -> None:
        """Restore a state of :meth:`get_extra_state`; None changes nothing."""
        if state is None:
            return
        self._restore_texts(state["texts"])
        self._action_rng = None if state["actions"] is None else torch.Generator()
        if self._action_rng is not None:
            self._action_rng.set_state(state["actions"].to("cpu", torch.uint8))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}_extra_state", None)  # TorchRL's collectors save no state of a plain env
        super()._load_from_state_dict(state_dict, prefix, *rest)
