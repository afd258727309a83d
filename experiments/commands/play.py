"""Evaluate a policy in a gymnasium environment, and show its first episode.

    rltok play
    rltok play --policy my_file:my_policy --reference learned --text notes.txt --episodes 256
    rltok play --env rltok_rl/Recall-v1 --policy agent.zip --trust-code --steps 64

Policy and reference read the same texts; the table has means and standard errors over texts. A policy is learned (the
model's own), random, uniform (evenly spaced), never, always, an agent that Stable-Baselines3 saved, or module:function,
from a batch of observations to actions. The default model is pocket, or that of the environment of a language. Options
must be those that an agent was trained with.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rltok_rl.agents.segmenters import SegmenterActor
from rltok_rl.experiments.commands.arguments import find_documents, load_with_segmenter
from rltok_rl.experiments.commands.parsers import DEFAULT, POLICIES, Parser, command

from rltok_rl.evaluation import evaluate_policy
from rltok_rl.utils import did_you_mean, import_path, is_import_path


@command("play", __doc__)
def main(parser: Parser, options: argparse.Namespace) -> None:
    """Command line."""
    arguments: dict[str, Any] = {"num_steps": options.steps, "price": options.price}
    options.rate, segmenter = None, None
    reads_text = "ByteBoundary" in options.env
    if options.text is not None and not reads_text:
        parser.error(f"argument --text: belongs to ByteBoundary, got {options.env}, which makes its texts")
    if options.model is not None or reads_text:
        options.model = options.model or DEFAULT
        arguments["model"], segmenter = load_with_segmenter(parser, options)
    if options.text is not None:
        data = argparse.Namespace(**{**vars(options), "data": options.text, "column": None, "bytes": None})
        arguments |= {"text": find_documents(parser, data, None)[1], "short_documents": "whole"}
    policies = [
        SegmenterActor(segmenter)
        if name == "learned" and segmenter is not None
        else _find_policy(parser, argument, name, options)
        for argument, name in (("--policy", options.policy), ("--reference", options.reference))
    ]
    try:
        result = evaluate_policy(
            policies[0],
            options.episodes,
            reference=policies[1],
            env_id=options.env,
            deterministic=options.greedy,
            seed=options.seed,
            **{name: value for name, value in arguments.items() if value is not None},
        )
    except (TypeError, ValueError) as error:
        if not str(error).startswith(("policy must ", "reference must ")):
            raise
        parser.error(f"argument --{str(error).partition('; batched=False')[0]}")  # an option of Python alone
    if not options.json:
        print(f"{result}\n\n{result.text()}")
        return
    sides = {"policy": result.policy, "reference": result.reference}
    returns = {f"{side}_returns": episodes.returns.tolist() for side, episodes in sides.items()}
    print(json.dumps({"texts": len(result.texts), **result.summary, **returns}, indent=1))


def _find_policy(parser: Parser, argument: str, name: str, options: argparse.Namespace) -> Any:
    """Return the policy that a word of the command line names, or end the command with an error."""
    if name in POLICIES:
        return name
    script = name.endswith(".py")
    if not script and (Path(name).is_file() or name.endswith(".zip")):
        return _load_agent(parser, argument, name, options)
    if not is_import_path(name):
        words = f"must be one of {', '.join(POLICIES)}, module:function or the file of an agent"
        hint = f"; a policy in this file is {Path(name).stem}:NAME" if script else did_you_mean(name, POLICIES)
        parser.error(f"argument {argument}: {words}, got {name!r}{hint}")
    try:
        return import_path(argument, name)
    except (ImportError, ValueError) as error:
        parser.error(f"argument {error}")


def _load_agent(parser: Parser, argument: str, path: str, options: argparse.Namespace) -> Any:
    """Load an agent that Stable-Baselines3 saved; its file does not name its algorithm."""
    if not Path(path).exists():
        parser.error(f"argument {argument}: {path} cannot be read: No such file or directory")
    if not options.trust_code:
        why = "Stable-Baselines3 unpickles this file, which executes code in it; pass --trust-code if you trust it"
        parser.error(f"argument {argument}: {path}: {why}")
    try:
        import stable_baselines3
        from stable_baselines3.common.save_util import load_from_zip_file

        data = load_from_zip_file(path)[0] or {}
        name = "DQN" if "exploration_rate" in data else "PPO" if "clip_range" in data else "A2C"
        return getattr(stable_baselines3, name).load(path, device=options.device)
    except (OSError, ValueError, KeyError, ImportError) as error:
        parser.error(f"argument {argument}: {path} cannot be read as an agent of Stable-Baselines3: {error}")
