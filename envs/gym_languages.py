"""gymnasium environments over languages whose best return is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gymnasium.vector import AutoresetMode
from rltok_rl.envs.gym_env import ByteBoundaryGym
from rltok_rl.envs.gym_given import Model, check_options, is_preset, read_model
from rltok_rl.envs.gym_vector import ByteBoundaryVectorEnv

from rltok_rl.data.languages import Language, Lexicon, Recall, visible_bytes
from rltok_rl.models import UNet

LanguageOptions = Mapping[str, Any] | Language | None

# Layers that see four bytes: the whole model sees seven without tokens, fewer than lie between a value and its query,
# or between a word and its copy.
_OVERRIDES: dict[str, Any] = {"window": 4}


def make_language(kind: type[Language], given: LanguageOptions, model: UNet) -> Language:
    """A language of a kind whose floor sees what the model's early exit sees.

    Args:
        kind: the class.
        given: a language of that class, or options to make one.
        model: the U-Net.
    """
    if isinstance(given, Language):
        if not isinstance(given, kind):
            raise TypeError(f"language must be a {kind.__name__}, got {type(given).__name__}")
        return given
    config = model.config
    return kind(**{"window": visible_bytes(config.window, config.num_encoder_layers), **(given or {})})


def make_model(model: Model, options: dict[str, Any]) -> UNet:
    """The model of a language: layers of a preset that is given by name see four bytes, unless options say otherwise.

    Args:
        model: as for :class:`~rltok_rl.envs.ByteBoundaryGym`.
        options: of the environment; ``overrides`` is taken out.
    """
    overrides = options.pop("overrides", None)
    return read_model(model, {**_OVERRIDES, **(overrides or {})} if is_preset(model) else overrides)


class _LanguageGym(ByteBoundaryGym):
    kind: type[Language]
    _named: ClassVar = ("model", "language", "num_steps", "render_mode")

    def __init__(
        self,
        model: Model = "tiny",
        language: LanguageOptions = None,
        num_steps: int = 128,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        check_options(options, *self._named)
        made = make_model(model, options)
        self.language = make_language(self.kind, language, made)
        super().__init__(made, self.language, num_steps, render_mode, **options)


class _LanguageVectorEnv(ByteBoundaryVectorEnv):
    kind: type[Language]
    _named: ClassVar = ("num_envs", "model", "language", "num_steps", "autoreset_mode")

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
        check_options(options, *self._named)
        made = make_model(model, options)
        self.language = make_language(self.kind, language, made)
        super().__init__(num_envs, made, self.language, num_steps, autoreset_mode, render_mode, **options)


class RecallGym(_LanguageGym):
    """Draw the boundary that keeps a value until it is asked for.

    ### Description
    :class:`ByteBoundaryGym` over the :class:`~rltok_rl.data.languages.Recall` language, ``#v`` filler ``?v``: bytes see
    a few bytes back, the value lies further, and only a token pooled right after it can carry it to the query.

    ### Action Space
    ``Discrete(2)``, as in :class:`ByteBoundaryGym`.

    ### Observation Space
    A ``Dict``, as in :class:`ByteBoundaryGym`.

    ### Rewards
    As in :class:`ByteBoundaryGym`. A model that has learned all there is earns
    ``env.unwrapped.language.optimal_return_per_byte`` nats per step at
    ``env.unwrapped.language.optimal_boundaries(byte_ids)``; the model is the world here, and learns elsewhere.

    ### Starting State
    The first byte of a fresh text, which is the first of a record.

    ### Episode End
    Truncated after ``num_steps`` decisions; texts never end.

    ### Arguments
    Args:
        model: as for :class:`ByteBoundaryGym`, a run of ``experiment=recall`` for example; the layers of a preset that
            is given by name are made to see 4 bytes.
        language: a language, or a dict of options of :class:`~rltok_rl.data.languages.Recall`.
        num_steps: decisions per episode.
        render_mode: as for :class:`ByteBoundaryGym`.
        **options: as for :class:`ByteBoundaryGym`.

    ```python
    import gymnasium
    env = gymnasium.make("rltok_rl:rltok_rl/Recall-v0", language={"values": "01", "mean_gap": 9.0})
    ```

    ### Version History
    v0: first version.
    """

    kind = Recall


class LexiconGym(_LanguageGym):
    """Draw boundaries at the ends of words that are written without spaces.

    ### Description
    :class:`ByteBoundaryGym` over the :class:`~rltok_rl.data.languages.Lexicon` language: words come back a few words
    later, further than bytes see; tokens pooled at the ends of words can carry them there.

    ### Action Space
    ``Discrete(2)``, as in :class:`ByteBoundaryGym`.

    ### Observation Space
    A ``Dict``, as in :class:`ByteBoundaryGym`.

    ### Rewards
    As in :class:`RecallGym`.

    ### Starting State
    The first byte of a fresh text, which is the first of a word.

    ### Episode End
    Truncated after ``num_steps`` decisions; texts never end.

    ### Arguments
    Args:
        model: as for :class:`RecallGym`.
        language: a language, or a dict of options of :class:`~rltok_rl.data.languages.Lexicon`.
        num_steps: decisions per episode.
        render_mode: as for :class:`ByteBoundaryGym`.
        **options: as for :class:`ByteBoundaryGym`.

    ```python
    import gymnasium
    env = gymnasium.make("rltok_rl:rltok_rl/Lexicon-v0", language={"num_words": 20, "copy": 0.8})
    ```

    ### Version History
    v0: first version.
    """

    kind = Lexicon


class RecallVectorEnv(_LanguageVectorEnv):
    """Many texts in one batched step of :class:`RecallGym`.

    Args:
        num_envs: texts that are read at the same time.
        model: as for :class:`RecallGym`.
        language: as for :class:`RecallGym`.
        num_steps: as for :class:`RecallGym`.
        autoreset_mode: as for :class:`ByteBoundaryVectorEnv`.
        **options: as for :class:`ByteBoundaryGym`.
    """

    kind = Recall


class LexiconVectorEnv(_LanguageVectorEnv):
    """Many texts in one batched step of :class:`LexiconGym`.

    Args:
        num_envs: texts that are read at the same time.
        model: as for :class:`RecallGym`.
        language: as for :class:`LexiconGym`.
        num_steps: as for :class:`RecallGym`.
        autoreset_mode: as for :class:`ByteBoundaryVectorEnv`.
        **options: as for :class:`ByteBoundaryGym`.
    """

    kind = Lexicon
