"""EleutherAI's lm-evaluation-harness with the models of this library, under its own options.

    rltok lm-eval --model_args pretrained=runs/mine,context=1024 --tasks piqa,wikitext --limit 100

``--model rltok`` is added, and ``--trust-code`` becomes ``trust_code=True`` in model_args. What model_args may hold are
the arguments of rltok_rl.evaluation.lm_eval.RltokLM.
"""

from __future__ import annotations

import json
import sys


def with_model(arguments: list[str]) -> list[str]:
    """Options of the harness's command line, with the model named where they run one.

    Args:
        arguments: as they were given.

    Example:
        >>> with_model(["--tasks", "piqa"])
        ['--tasks', 'piqa', '--model', 'rltok']
        >>> with_model(["ls", "tasks"])
        ['ls', 'tasks']
    """
    runs = not arguments or arguments[0].startswith("-") or arguments[0] == "run"
    named = any(one in ("--model", "-M") or one.startswith("--model=") for one in arguments)
    return [*arguments, "--model", "rltok"] if runs and not named else list(arguments)


def with_trust(arguments: list[str]) -> list[str]:
    """Turn ``--trust-code``, which the harness does not know, into an argument of the model.

    Args:
        arguments: as they were given.

    Example:
        >>> with_trust(["--model_args", "pretrained=runs/mine", "--trust-code"])
        ['--model_args', 'pretrained=runs/mine,trust_code=True']
        >>> with_trust(["--model_args", "pretrained=runs/mine"])
        ['--model_args', 'pretrained=runs/mine']
    """
    kept = [one for one in arguments if one != "--trust-code"]
    if len(kept) == len(arguments):
        return kept
    for place, one in enumerate(kept):
        name, equals, value = one.partition("=")
        if name == "--model_args" and equals:
            kept[place] = f"{name}={_add_trust(value)}"
            return kept
        if one in ("--model_args", "-a") and place + 1 < len(kept):
            kept[place + 1] = _add_trust(kept[place + 1])
            return kept
    return [*kept, "--model_args", "trust_code=True"]


def _add_trust(model_args: str) -> str:
    if model_args.lstrip().startswith("{"):
        return json.dumps({**json.loads(model_args), "trust_code": True})
    return f"{model_args},trust_code=True"


def main() -> int:
    """Command line."""
    try:
        import rltok_rl.evaluation.lm_eval  # noqa: F401  registers the model
    except ImportError as error:
        print(f"rltok lm-eval: {error}", file=sys.stderr)
        return 2
    from lm_eval.__main__ import cli_evaluate

    sys.argv[1:] = with_trust(with_model(sys.argv[1:]))
    cli_evaluate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
