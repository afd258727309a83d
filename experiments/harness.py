"""EleutherAI's lm-evaluation-harness with the models of this library, under its own options.

    rltok lm-eval --model_args pretrained=runs/mine,context=1024 --tasks piqa,wikitext --limit 100

``--model rltok`` is added. What model_args may hold are the arguments of rltok_rl.evaluation.harness.RltokLM.
"""

from __future__ import annotations

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


def main() -> int:
    """Command line."""
    try:
        import rltok_rl.evaluation.harness  # noqa: F401  registers the model
    except ImportError as error:
        print(f"rltok lm-eval: {error}", file=sys.stderr)
        return 2
    from lm_eval.__main__ import cli_evaluate

    sys.argv[1:] = with_model(sys.argv[1:])
    cli_evaluate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
