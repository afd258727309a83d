"""Mutation check: plant known bugs one at a time and report which test finds each.

    python -m tests.mutations --list
    python -m tests.mutations --only cache-slot cache-reset
    python -m tests.mutations --whole

Each bug is planted in a temporary copy of the checkout, where pytest runs the tests named for it until one fails. A
failure counts only if the same test passes without bugs; all these tests are run at the end. With ``--whole``, bugs
that their tests miss are planted together for one run of the whole suite, and one by one if that run fails. With
``--results FILE``, an interrupted check resumes. The exit status is 1 if a bug is not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .layout import ROOT, ROOTS, modules


@dataclass(frozen=True)
class Bug:
    """A replacement of source code that tests have to notice.

    The code is searched in all source files and must occur once, so that a bug survives files being moved or merged.
    If you rewrite the code, rewrite the bug.
    """

    name: str
    tests: str
    """Test files and folders to run first, separated by spaces."""
    old: str
    new: str

    def file(self, root: Path = ROOT) -> Path:
        """The source file that holds the code; raise ValueError unless it occurs exactly once."""
        texts = _checkout() if root == ROOT else _texts(root)
        counts = {path: text.count(self.old) for path, text in texts.items()}
        if sum(counts.values()) != 1:
            raise ValueError(
                f"code of bug {self.name!r} must occur once in {list(ROOTS)}, got {sum(counts.values())}: {self.old!r}"
            )
        return max(counts, key=lambda path: counts[path])


def _texts(root: Path) -> dict[Path, str]:
    return {path: path.read_text() for _, path in modules(root)}


@cache
def _checkout() -> dict[Path, str]:
    """Sources of the checkout, where no bug is planted."""
    return _texts(ROOT)


MISSED = "NOT FOUND"

# Tests that several bugs name.
RETURNS = "tests/laws/test_return_laws.py"
BASELINES = "tests/laws/test_baseline_laws.py"
RELEASED = "tests/test_released.py"
MARKS = "tests/test_begin_of_text.py"
RATES = "tests/laws/test_rate_laws.py tests/objectives/test_rate.py"
POLICY = "tests/functional/test_policy.py tests/agents/test_agents.py"
REWARDS = "tests/envs/test_byte_boundary.py tests/envs/test_parallel.py"
PARALLEL = "tests/envs/test_parallel.py"
CACHE = "tests/models/test_incremental.py"
CHECKPOINT = "tests/training/test_checkpoint.py"

BUGS = (
    # Returns
    Bug("return-gamma", RETURNS, "returns = reverse_scan(x, cut(", "returns = gamma * reverse_scan(x, cut("),
    Bug(
        "return-done",
        RETURNS,
        "reverse_scan(x, cut(gamma, done, x))",
        "reverse_scan(x, gamma)",
    ),
    Bug(
        "scan-reach",
        RETURNS,
        "product, reach = product * product, 2 * reach",
        "product, reach = product * product, reach + 1",
    ),
    # Baselines
    Bug(
        "leave-one-out-factor",
        BASELINES,
        "return (centred * (count / (count - 1).clamp(min=1))).to(returns.dtype)",
        "return centred.to(returns.dtype)",
    ),
    Bug(
        "baseline-mask",
        BASELINES,
        "sum_and_count(returns, mask, dim=leading,",
        "sum_and_count(returns, None, dim=leading,",
    ),
    Bug(
        "baseline-over-time",
        BASELINES,
        "leading = tuple(range(returns.dim() - 1))",
        "leading = tuple(range(returns.dim())) if returns.dim() > 1 else ()",
    ),
    Bug(
        "equal-returns",
        BASELINES,
        "variance <= (8 * torch.finfo(deviation.dtype).eps * mean).square()",
        "variance <= 0",
    ),
    Bug(
        "rows-per-mean",
        BASELINES,
        "row_groups(rows_per_mean, returns, mask)",
        "row_groups(len(returns), returns, mask)",
    ),
    # The released recipe
    Bug(
        "last-byte-of-window",
        RELEASED,
        "torch.cat((real, real.any(-1, keepdim=True)), -1)",
        "torch.cat((real, torch.zeros_like(real[..., :1])), -1)",
    ),
    Bug("token-of-mark", MARKS, " + self.num_marks * int(self.begins.sum())", ""),
    Bug("mark-of-stream", MARKS, "torch.full((num_rows,), BEGIN_OF_TEXT)", "torch.full((num_rows,), 0)"),
    # Rewards
    Bug("reward-sign", REWARDS, "return final_log_prob - early_log_prob", "return early_log_prob - final_log_prob"),
    Bug("reward-early-exit", REWARDS, "return final_log_prob - early_log_prob", "return final_log_prob"),
    # Policy
    Bug("lag-order", POLICY, "return windows.flip(-1)", "return windows"),
    Bug(
        "cap-in-evaluation",
        PARALLEL,
        "return self._training_cap if self.training else None",
        "return self._training_cap",
    ),
    Bug(
        "forced-log-prob",
        POLICY,
        "return log_probs if forced is None else log_probs.masked_fill(forced, 0.0)",
        "return log_probs",
    ),
    Bug(
        "ppo-advantage-mean",
        "tests/objectives/test_losses.py",
        "advantages = (advantages - mean) / spread.clamp(min=1e-6)",
        "advantages = advantages / spread.clamp(min=1e-6)",
    ),
    # Rate control
    Bug(
        "rate-gradient",
        RATES,
        "masked_mean(logits.detach().sigmoid(), mask,",
        "masked_mean(logits.sigmoid(), mask,",
    ),
    Bug("rate-windup", RATES, "error.clamp(-limit, limit)", "error.clamp(max=limit)"),
    Bug(
        "binomial-empty-rows",
        RATES,
        "loss_mean(binomial_cost(k, n, target), n > 0,",
        "loss_mean(binomial_cost(k, n, target), None,",
    ),
    # Model
    Bug(
        "token-of-byte",
        "tests/models/test_pooling.py tests/models/test_textbook.py",
        ".index_select(0, layout.token_index.flatten())",
        ".index_select(0, (layout.token_index - layout.boundaries.long()).clamp(min=0).flatten())",
    ),
    Bug(
        "packed-rows",
        "tests/models/test_packing.py",
        "lengths=rows.num_tokens.tolist(), cap=cap",
        "lengths=[int(rows.num_tokens.sum())], cap=cap",
    ),
    Bug("cache-slot", CACHE, "rows, position % window, seen", "rows, position % max(window - 1, 1), seen"),
    Bug("cache-reset", CACHE, "self.tokens.count,", ""),
    Bug(
        "cache-earlier-token",
        CACHE,
        "% window <= (position - starts)[:, None]  # by age",
        "% window <= position[:, None]",
    ),
    # Byte layers inside a token
    Bug(
        "encoder-start",
        "tests/models/test_textbook.py",
        "follows = F.pad(boundaries, (1, 0))[:, :-1] & (places > 1)",
        "follows = boundaries & (places > 1)",
    ),
    # Rollout
    Bug("next-state", PARALLEL, '"encoder_state": states.float()', '"encoder_state": states.roll(-1, 1).float()'),
    Bug(
        "uniform-order",
        PARALLEL,
        "torch.rand(num_steps, env.num_rows * count, generator=generator, device=env.device).t()",
        "torch.rand(env.num_rows * count, num_steps, generator=generator, device=env.device)",
    ),
    # Training
    Bug(
        "micro-batch-means",
        "tests/training/test_gradients.py",
        "torch.stack([self._run_term(name, rollout, values) for name in terms]).sum().backward()",
        "sum(self._run_term(name, part, values) for part in rollout.split(len(batch[0])) for name in terms)"
        ".div(len(batch)).backward(); values = {name: [sum(each) / len(each)] for name, each in values.items()}",
    ),
    Bug(
        "resume-generator",
        "tests/training/test_loop.py",
        "self.generator.set_state(as_state(part))",
        "pass",
    ),
    Bug("checksum", CHECKPOINT, "if checksum(path / name) != sums.get(name):", "if False:"),
    Bug("fsync-files", CHECKPOINT, "flush(partial / name)", "pass"),
    Bug("fsync-partial", CHECKPOINT, "name)\n        flush(partial)", "name)"),
    Bug("fsync-folder", CHECKPOINT, "flush(folder)", "pass"),
    Bug("fsync-logs", "tests/experiments/test_crashes.py", "flush(path)\n    num_bytes", "pass\n    num_bytes"),
    Bug("lost-lines", "tests/experiments/test_crashes.py", "if size < num_bytes:", "if size < 0:"),
    # Data
    Bug(
        "held-out-in-training",
        "tests/data/test_split.py",
        "source.lengths[side]) for side in (~out, out))",
        "source.lengths[side]) for side in (~out | out, out))",
    ),
)


def copy_checkout(folder: Path) -> None:
    """Copy all files of the checkout that git does not ignore."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@contextmanager
def planted(bugs: Sequence[Bug], root: Path) -> Iterator[None]:
    """Plant bugs in a copy of the checkout and remove them afterwards."""
    files = {bug.file(root) for bug in bugs}
    originals = {path: path.read_text() for path in files}
    try:
        for bug in bugs:
            path = bug.file(root)
            path.write_text(path.read_text().replace(bug.old, bug.new))
        yield
    finally:
        for path, text in originals.items():
            path.write_text(text)


def first_failure(tests: Sequence[str], root: Path) -> str | None:
    """Run tests in a copy of the checkout until one fails; return its id, or None if all pass.

    The first of the tests stands for the one that a signal has ended.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command += ["--ignore=tests/test_mutations.py", *tests]  # its test fails wherever a bug is planted
    # No bytecode: a file that is rewritten within a second at the same size would keep its old one.
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if result.returncode == 0:
        return None
    if result.returncode < 0 and -result.returncode != signal.SIGKILL:  # one that the library no longer catches
        return tests[0]
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", result.stdout, flags=re.MULTILINE)
    if result.returncode not in (1, 2) or failed is None:
        raise RuntimeError(
            f"pytest ended with {result.returncode} on {' '.join(tests)}:\n{result.stdout}{result.stderr}"
        )
    return failed[1]


def finder(bugs: Sequence[Bug], tests: Sequence[str], root: Path) -> str | None:
    """Plant bugs and return the first test that fails, or None."""
    with planted(bugs, root):
        return first_failure(tests, root)


def main(all_bugs: Sequence[Bug] = BUGS, prog: str = "python -m tests.mutations") -> int:
    """Parse the command line, check the bugs and print one line for each."""
    parser = argparse.ArgumentParser(prog=prog, description="Plant known bugs; which test finds each?")
    names = [bug.name for bug in all_bugs]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="bugs to plant")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="tests to run instead of those named for each bug")
    parser.add_argument("--whole", action="store_true", help="run the whole suite for bugs that these tests miss")
    parser.add_argument("--results", type=Path, metavar="FILE", help="append results; skip bugs found in it")
    parser.add_argument("--list", action="store_true", help="print each bug, its file and its tests")
    options = parser.parse_args()
    bugs = [bug for bug in all_bugs if bug.name in options.only]
    if options.list:
        for bug in bugs:
            print(f"{bug.name:26} {bug.file().relative_to(ROOT)}: {bug.tests}")
        return 0

    results: Path | None = options.results
    lines = results.read_text().splitlines() if results and results.exists() else []
    found = {name: test for name, _, _, test in (line.split(maxsplit=3) for line in lines) if test != MISSED}

    def check(bug: Bug, tests: Sequence[str]) -> bool:
        if bug.name not in found:
            start = time.perf_counter()
            test = finder([bug], tests, root)
            line = f"{bug.name:26} {time.perf_counter() - start:6.0f} s  {test or MISSED}"
            print(line, flush=True)
            if results:
                with results.open("a") as file:
                    file.write(f"{line}\n")
            found.update({bug.name: test} if test else {})
        return bug.name in found

    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        root = Path(folder)
        copy_checkout(root)
        missed = [bug for bug in bugs if not check(bug, options.tests or bug.tests.split())]
        if missed and options.whole:
            print(f"running the whole suite for {', '.join(bug.name for bug in missed)}", flush=True)
            if len(missed) == 1 or finder(missed, ["tests"], root) is not None:
                missed = [bug for bug in missed if not check(bug, ["tests"])]
        tests = sorted({found[bug.name] for bug in bugs if bug not in missed})
        if tests and (test := first_failure(tests, root)) is not None:
            raise RuntimeError(f"{test} must pass without a bug, but fails")
    print(f"{len(bugs) - len(missed)} of {len(bugs)} bugs found")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
