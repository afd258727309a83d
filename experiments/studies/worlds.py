"""Train the language models of ``rltok_rl/Recall-v1`` and ``rltok_rl/Lexicon-v1``, and score simple policies in them.

    python -m rltok_rl.experiments.studies.worlds                  # both, in minutes of one core each
    python -m rltok_rl.experiments.studies.worlds lexicon --out runs/worlds

A world has to pay every policy that an agent may try. Its model is therefore trained on texts with different
boundaries each: the best ones, some of them, late ones, random ones, evenly spaced ones, all, none.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents import FixedStrideActor, RandomActor, RuleActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.envs.registration import ENVIRONMENTS
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.studies.common import StepLines
from rltok_rl.experiments.studies.small_models import train_model
from rltok_rl.experiments.texts import LANGUAGES
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.data.disk import replace_text
from rltok_rl.data.languages import Language
from rltok_rl.evaluation import evaluate_policy, mean_and_error
from rltok_rl.models import UNet, preset

ROWS, STEPS = 16, 128
SCHEDULES: dict[str, tuple[int, float, dict[str, Any]]] = {  # updates, learning rate, overrides of the preset
    "recall": (1800, 4e-3, {"window": 4}),
    "lexicon": (1500, 5e-3, {"window": 4, "rope_base": 100.0}),
}


def mixed_boundaries(byte_ids: Tensor, *, language: Language) -> Tensor:
    """Draw boundaries [B, T] for texts [B, T], each row by another policy.

    A quarter of the rows have the best boundaries, and an eighth evenly spaced ones. The others draw each of the best
    with probability ``keep``, in three rows of eight one to three bytes late, and any place with probability ``rate``.
    Both are uniform on more than [0, 1] and clipped, so that rows with all boundaries and with none occur.
    """
    num_rows, num_bytes = byte_ids.shape
    best = language.optimal_boundaries(byte_ids)
    delay = (torch.randint(8, (num_rows, 1)) - 4).clamp(min=0)
    source = torch.arange(num_bytes) - delay
    late = best.gather(1, source.clamp(min=0)) & (source >= 0)
    keep = (1.6 * torch.rand(num_rows, 1) - 0.2).clamp(0, 1)
    rate = (2.0 * torch.rand(num_rows, 1) - 0.9).clamp(0, 1)
    mixed = (torch.rand(byte_ids.shape) < keep) & late | (torch.rand(byte_ids.shape) < rate)
    stride, start = torch.randint(2, 17, (num_rows, 1)), torch.randint(16, (num_rows, 1))
    even = (torch.arange(num_bytes) + start) % stride == 0
    kind = torch.randint(8, (num_rows, 1))
    return torch.where(kind < 2, best, torch.where(kind == 2, even, mixed))


def train_world(name: str, *, updates: int | None = None) -> UNet:
    """Train the model of a world on the language ``name``, with next-byte losses of both heads alone."""
    length, lr, overrides = SCHEDULES[name]
    length = length if updates is None else updates
    language = LANGUAGES[name]()
    torch.manual_seed(0)
    model = UNet(preset("tiny", **overrides))
    env = ByteBoundaryEnv(model, language, num_steps=STEPS, batch_size=(ROWS,), seed=0)
    actor = RuleActor(partial(mixed_boundaries, language=language), ["byte"])

    def loss(rollout: TensorDictBase) -> tuple[Tensor, str]:
        after = rollout["next"]
        final, early = after["final_log_prob"].mean(), after["early_log_prob"].mean()
        return -final - 0.3 * early, f": {-final:.3f} nats per byte (early exit {-early:.3f})"

    progress = StepLines(f"{name}, update", lines=20)
    train_model(env, actor, loss, lr=lr, updates=length, warm_up=50, floor=0.02, progress=progress)
    return model.eval()


def simple_policies(language: Language) -> dict[str, RuleActor | RandomActor | str]:
    """Return the policies of the tables; random and evenly spaced boundaries are about as many as the best ones."""
    rate = language.boundary_rate
    stride = round(1 / rate)
    return {
        "optimum": RuleActor(language.optimal_boundaries, ["byte"]),
        f"every {language.window} bytes": FixedStrideActor(language.window),  # the encoder sees all between two
        f"every {stride} bytes": FixedStrideActor(stride),
        "random": RandomActor(rate),
        "never": "never",
        "always": "always",
    }


def scores(
    env_id: str, policies: Mapping[str, Any], num_texts: int, *, seed: int = 0, **options: Any
) -> dict[str, tuple[float, float | None]]:
    """Return the mean return of each policy and its standard error, all on the same texts."""
    returns = {}
    for name, policy in policies.items():
        options |= {"env_id": env_id, "num_envs": min(num_texts, 256), "reference": "never", "seed": seed}
        returns[name] = mean_and_error(evaluate_policy(policy, num_texts, **options).policy.returns)
    return returns


CARD = """\
# {language}-world

The trained language model of `{env_id}`: {parameters:,} parameters, made by

    python -m rltok_rl.experiments.studies.worlds {language}

{table}

Mean return of {num_steps} decisions on {num_texts:,} texts, at {price} nats per boundary; ± is the standard error.
"""


def write_world(language: str, out: Path, *, updates: int | None = None, num_texts: int = 1024) -> str:
    """Train a world, write it to a folder of ``out`` with a card that has its table of scores, and return the card."""
    model = train_world(language, updates=updates)
    folder = model.save_pretrained(out / f"{language}-world")
    card = world_card(model, language, num_texts)
    replace_text(folder / "README.md", card)
    return card


def world_card(model: UNet, language: str, num_texts: int) -> str:
    """Score simple policies in a world, and return its model card."""
    kind = LANGUAGES[language]
    env_id = f"rltok_rl/{kind.__name__}-v1"
    returns = scores(env_id, simple_policies(kind()), num_texts, model=model)
    rows = [(name, f"{mean:.1f} ± {error:.1f}") for name, (mean, error) in returns.items()]
    return CARD.format(
        language=language,
        env_id=env_id,
        parameters=sum(weight.numel() for weight in model.parameters()),
        table=markdown(["boundaries", "return"], rows),
        num_steps=STEPS,
        num_texts=num_texts,
        price=ENVIRONMENTS[env_id]["kwargs"]["price"],
    )


def main(arguments: list[str] | None = None) -> None:
    """Train the worlds that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("languages", nargs="*", help=f"of {', '.join(SCHEDULES)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("rltok_rl/assets"), help="default: %(default)s")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.languages) - set(SCHEDULES)):
        parser.error(f"languages must be among {[*SCHEDULES]}, got {unknown}")
    torch.set_num_threads(1)
    for language in options.languages or SCHEDULES:
        print(write_world(language, options.out))


if __name__ == "__main__":
    main()
