"""One test for all members of a family: it runs a law for each, and reports every member that breaks it."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch


def each(**axes: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Loop over all combinations of ``axes``, with the same random numbers for each; other arguments are fixtures."""
    values = {name: list(members) for name, members in axes.items()}
    assert all(values.values()), f"axes must have members, got {values}"

    def decorate(law: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(law)
        def test(**fixtures: Any) -> None:
            broken = []
            for combination in itertools.product(*values.values()):
                member = dict(zip(values, combination, strict=True))
                torch.manual_seed(0)
                try:
                    law(**member, **fixtures)
                except (Exception, pytest.fail.Exception) as error:  # noqa: PERF203
                    broken.append(f"{member}: {type(error).__name__}: {error}")
            assert not broken, f"{len(broken)} members break the law\n\n" + "\n\n".join(broken)

        parameters = [p for name, p in inspect.signature(law).parameters.items() if name not in values]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        del test.__wrapped__  # type: ignore[attr-defined]
        return test

    return decorate


def refused(*cases: tuple[Callable[[], Any], type[Exception], str]) -> None:
    """Require that each call raises its error with the words, a regular expression."""
    wrong = []
    for call, error, words in cases:
        try:
            with pytest.raises(error, match=words):
                call()
        except (Exception, pytest.fail.Exception) as failure:  # noqa: PERF203
            wrong.append(f"{words!r}: {type(failure).__name__}: {failure}")
    assert not wrong, "\n".join(wrong)
