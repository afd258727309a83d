"""Run EleutherAI's lm-evaluation-harness with the models of this library; the options are the harness's.

    rltok lm-eval --model_args pretrained=runs/mine,context=1024 --tasks piqa,wikitext --limit 100

``--model rltok`` is added, and ``--trust-code`` becomes ``trust_code=True`` in model_args. model_args takes the
arguments of rltok_rl.evaluation.lm_eval.RltokLM.
"""

from __future__ import annotations

import contextlib
import json
import sys


def with_model(arguments: list[str]) -> list[str]:
    """Add ``--model rltok`` if the harness runs a model and none is named.

    Example:
        >>> with_model(["--tasks", "piqa"]), with_model(["ls", "tasks"])
        (['--tasks', 'piqa', '--model', 'rltok'], ['ls', 'tasks'])
    """
    runs = not arguments or arguments[0].startswith("-") or arguments[0] == "run"
    named = any(word in ("--model", "-M") or word.startswith("--model=") for word in arguments)
    return [*arguments, "--model", "rltok"] if runs and not named else list(arguments)


def with_trust(arguments: list[str]) -> list[str]:
    """Turn ``--trust-code``, which the harness does not know, into an argument of the model.

    Example:
        >>> with_trust(["--model_args", "pretrained=runs/mine", "--trust-code"])
        ['--model_args', 'pretrained=runs/mine,trust_code=True']
    """
    words = [word for word in arguments if word != "--trust-code"]
    if len(words) == len(arguments):
        return words
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--model_args" and equals:
            return [*words[:place], f"{name}={_add_trust(value)}", *words[place + 1 :]]
        if word in ("--model_args", "-a") and place + 1 < len(words):
            return [*words[: place + 1], _add_trust(words[place + 1]), *words[place + 2 :]]
    return [*words, "--model_args", "trust_code=True"]


def _add_trust(model_args: str) -> str:
    if model_args.lstrip().startswith("{"):
        return json.dumps({**json.loads(model_args), "trust_code": True})
    return f"{model_args},trust_code=True"


def main() -> int:
    """Command line."""
    arguments = with_trust(with_model(sys.argv[1:]))
    sys.argv[1:] = arguments
    with contextlib.suppress(ImportError):
        from lm_eval._cli import HarnessCLI

        HarnessCLI().parse_args()  # answers wrong options before torch is imported
    try:
        import rltok_rl.evaluation.lm_eval  # noqa: F401  registers the model
    except ImportError as error:
        print(f"rltok lm-eval: {error}", file=sys.stderr)
        return 2
    from lm_eval.__main__ import cli_evaluate

    sys.argv[1:] = arguments
    cli_evaluate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
