"""Gymnasium environments over languages with a known optimal return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.vector import AutoresetMode
from rltok_rl.envs.gym_env import ByteBoundaryGym
from rltok_rl.envs.gym_options import Model, check_options, is_preset, read_model
from rltok_rl.envs.gym_vector import ByteBoundaryVectorEnv

from rltok_rl.data.languages import Language, Lexicon, Recall, visible_bytes
from rltok_rl.models import UNet

LanguageOptions = Mapping[str, Any] | Language | None


class _Speaker:
    """An environment over texts of one kind of language, which its model can read."""

    kind: type[Language]

    def _build(self, model: Model, language: LanguageOptions, options: dict[str, Any]) -> tuple[UNet, Language]:
        """The model, and a language whose floor sees what the model's early exit sees; pops ``overrides``."""
        check_options(self, options)
        overrides = options.pop("overrides", None)
        if is_preset(model):
            # Layers that see four bytes: without tokens the model sees seven, too few to remember a value.
            overrides = {"window": 4, **(overrides or {})}
        unet = read_model(model, overrides)
        if not isinstance(language, Language):
            window = visible_bytes(unet.config.window, unet.config.num_encoder_layers)
            language = self.kind(**{"window": window, **(language or {})})
        elif not isinstance(language, self.kind):
            raise TypeError(f"language must be a {self.kind.__name__}, got {type(language).__name__}")
        return unet, language


class _LanguageGym(_Speaker, ByteBoundaryGym):
    def __init__(
        self,
        model: Model = "tiny",
        language: LanguageOptions = None,
        num_steps: int = 128,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        unet, self.language = self._build(model, language, options)
        super().__init__(unet, self.language, num_steps, render_mode, **options)


class _LanguageVectorEnv(_Speaker, ByteBoundaryVectorEnv):
    def __init__(
        self,
        num_envs: int = 1,
        model: Model = "tiny",
        language: LanguageOptions = None,
        num_steps: int = 128,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        unet, self.language = self._build(model, language, options)
        super().__init__(num_envs, unet, self.language, num_steps, autoreset_mode, render_mode, **options)


class RecallGym(_LanguageGym):
    """Draw the boundary that keeps a value until it is queried.

    :class:`ByteBoundaryGym` over the :class:`~rltok_rl.data.languages.Recall` language, ``#v`` filler ``?v``: bytes see
    a few bytes back, the value lies further, and only a token pooled right after it can carry it to the query. Texts
    never end; episodes are truncated after ``num_steps`` decisions.

    ``env.unwrapped.language.optimal_boundaries(byte_ids)`` are the best boundaries; with a perfect model they earn
    ``env.unwrapped.language.optimal_return_per_byte`` nats per step. The environment does not train its model.

    ``Recall-v1`` has a trained model, ``"recall-world"``, and a price of 0.25 nats per boundary. It is solved at a
    mean return of 22.2 over 100 episodes (``reward_threshold``). Returns of 128 decisions, with errors of 0.2 at most:

    | boundaries | return |
    |---|---|
    | optimum | 23.8 |
    | every 4 bytes | 18.8 |
    | every 12 bytes | 10.2 |
    | random | 5.9 |
    | never | 6.0 |
    | always | -4.7 |

    ``Recall-v0`` has an untrained model, in which tokens are noise: the best boundaries earn 2.9 and never drawing one
    earns 8.9. Give it a model that you trained.

    Args:
        model: as for :class:`ByteBoundaryGym`, such as a run of ``experiment=recall``; a preset's layers see 4 bytes.
        language: a language, or a dict of options of :class:`~rltok_rl.data.languages.Recall`.
        **options: these and the others as for :class:`ByteBoundaryGym`.

    ```python
    import gymnasium
    env = gymnasium.make("rltok_rl:rltok_rl/Recall-v1")
    ```
    """

    kind = Recall


class LexiconGym(_LanguageGym):
    """Draw boundaries at the ends of words that are written without spaces.

    :class:`ByteBoundaryGym` over the :class:`~rltok_rl.data.languages.Lexicon` language: words recur a few words later,
    further than bytes see; tokens pooled at the ends of words can carry them there. Arguments are those of
    :class:`RecallGym`, with options of :class:`~rltok_rl.data.languages.Lexicon`.

    ``Lexicon-v1`` has a trained model, ``"lexicon-world"``, and a price of 0.25 nats per boundary. It is solved at a
    mean return of 40.0 over 100 episodes (``reward_threshold``). Returns of 128 decisions, with errors of 0.5 at most:

    | boundaries | return |
    |---|---|
    | optimum | 43.4 |
    | every 4 bytes | 11.5 |
    | every 3 bytes | 26.7 |
    | random | 12.3 |
    | never | 1.9 |
    | always | 30.2 |

    ``Lexicon-v0`` has an untrained model: the best boundaries earn 1.1, random ones 2.1.

    ```python
    import gymnasium
    env = gymnasium.make("rltok_rl:rltok_rl/Lexicon-v1")
    ```
    """

    kind = Lexicon


class RecallVectorEnv(_LanguageVectorEnv):
    """Many texts in one batched step of :class:`RecallGym`; see also :class:`ByteBoundaryVectorEnv`."""

    kind = Recall


class LexiconVectorEnv(_LanguageVectorEnv):
    """Many texts in one batched step of :class:`LexiconGym`; see also :class:`ByteBoundaryVectorEnv`."""

    kind = Lexicon
