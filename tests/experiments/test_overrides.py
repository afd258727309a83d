"""The front of Hydra: every mistake on a command line is answered in one line before anything is run or written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from rltok_rl.experiments.commands import overrides
from rltok_rl.experiments.commands.option_errors import quoted
from rltok_rl.experiments.commands.overrides import read_command_line
from rltok_rl.experiments.commands.run_checks import check_policy, read_run_options
from rltok_rl.experiments.studies import estimator_options  # noqa: F401  registers its schema

from ..forked import run_forked
from ..layout import ROOT
from .configured import compose_once

NO_RUN = "rate=hinge belongs to a policy that is learned, got actor=uniform"
SWEEP = "out must name another folder for each run of --multirun,"
#: Command line to the message, whole.
REFUSED = {
    "--hlep": "there is no flag '--hlep'; did you mean '--help'?",
    "--nosuch": "there is no flag '--nosuch'; --help lists options",
    "--seed 3": "options must be written name=value, got '--seed'; write seed=VALUE",
    "--seed=3": "options must be written name=value, got '--seed=3'; write seed=3",
    "--lr=1": "options must be written name=value, got '--lr=1'; write optim.lr=1",
    "-model=tiny": "options must be written name=value, got '-model=tiny'; write model=tiny",
    "-multirun seed=1,2": "there is no flag '-multirun'; did you mean '--multirun'?",
    "-c": "argument --cfg/-c: expected one argument",
    "--multirun=1": "argument --multirun/-m: ignored explicit argument '1'",
    "--resolve=true": "argument --resolve: ignored explicit argument 'true'",
    "--resolve": "--resolve belongs to --cfg",
    "--cfg job -m": "only one of --run, --multirun, --cfg, --info, --shell-completion may be given, got --multirun and "
    "--cfg",
    "--experimental-rerun x": "--experimental-rerun is not supported; repeat the command in the run's summary.json",
    "seed": "options must be written name=value, got 'seed'; write seed=VALUE",
    "'optim. lr=3'": "options must be written name=value without spaces around the name, got 'optim. lr=3'",
    '"out=\'runs/x"': "out must have its quotes and brackets closed, got 'runs/x",
    "data.options={a:1": "data.options must have its quotes and brackets closed, got {a:1",
    "'data.source=a(b'": "data.source must be quoted if it has special characters, got 'a(b'; write "
    "\"data.source='a(b'\"",
    "optim.lrr=1": "there is no option 'optim.lrr'; did you mean 'optim.lr'?",
    "lr=1": "there is no option 'lr'; did you mean 'optim.lr'?",
    "loss.clip_epsilon=0.1": "there is no option 'loss.clip_epsilon'; set both loss.clip_low and loss.clip_high",
    "estimater=flips": "there is no option 'estimater'; did you mean 'estimator'?",
    "model.overrides.widht=3": "model.overrides holds fields of UNetConfig, got 'widht'; did you mean 'width'?",
    "loss=reinforc": "loss must be one of ['importance', 'ppo', 'reinforce', 'released'], got 'reinforc'; did you mean "
    "'reinforce'?",
    "-m loss=ppo,releasd": "loss must be one of ['importance', 'ppo', 'reinforce', 'released'], got 'releasd'; did you "
    "mean 'released'?",
    "estimator.gamma=abc": "estimator.gamma must be a float, got 'abc'",
    "optim.total_bytes=1.5": "optim.total_bytes must be an int, got 1.5",
    "data.limit=": "data.limit must be an int or null, got ''",
    "seed=null": "seed must be an int, got null",
    "resume=maybe": "resume must be true or false, got 'maybe'",
    "out=null": "out must be a string, got null",
    "compare.systems=bpe": "compare.systems must be a list of strings, got 'bpe'; write compare.systems=[bpe]",
    "compare.options.hnet=3": "compare.options.hnet must be a dict, got 3; write compare.options.hnet.NAME=VALUE",
    "compare.windows=7": "compare.windows=7 belongs to a comparison, got no compare.systems",
    "actor.rates=[a,b]": "actor.rates must be a list of floats or null, got [a,b]",
    "data.options=3": "data.options must be a dict, got 3; write data.options.NAME=VALUE",
    "-m seed=1,x": "seed must be an int, got 'x'",
    "+optim.lrr=1": "there is no option 'optim.lrr'; did you mean 'optim.lr'?",
    "++a.b.c=1": "there is no option 'a.b.c'",
    "hydra.sweeper.params={seed:1}": "these options cannot be put together: 'NoneType' object has no attribute 'get'",
    "+foo=1": "there is no option 'foo'",
    "compare.optionsx.a=1": "there is no option 'compare.optionsx.a'; did you mean 'compare.options'?",
    "+seed=3": "Could not append to config. An item is already at 'seed'; Either remove + prefix: 'seed=3'; Or add a "
    "second + to add or override 'seed': '++seed=3'",
    "seed=1,2": "seed must be one value without --multirun, got 1,2; add --multirun for a run each",
    "out=a,b": "out must be one value without --multirun, got a,b; add --multirun for a run each, or write "
    "\"out='a,b'\" for one text with commas",
    "data=files": "data.source must be given",
    "'out=runs/${seeed}'": "out: Interpolation key 'seeed' not found",
    "out=": "out must be a folder, got an empty name; write out=runs/NAME, or out=. for this folder",
    "'out= '": "out must be a folder, got an empty name; write out=runs/NAME, or out=. for this folder",
    "out=/dev/null/run": "out must be a folder that can be written, got '/dev/null/run': /dev/null is not a folder",
    "actor=uniform rate=hinge": NO_RUN,
    "-m seed=0,1 rate=ratio,hinge": f"{SWEEP} got runs/train for 4 runs; write 'out=runs/train-${{hydra:job.num}}'",
    "-m seed=0,1 'out=runs/${model.preset}'": f"{SWEEP} got runs/tiny for 2 runs; write "
    "'out=runs/tiny-${hydra:job.num}'",
    "'seed=range(2)' -m": f"{SWEEP} got runs/train for 2 runs; write 'out=runs/train-${{hydra:job.num}}'",
    "-m out=runs/a,runs/b seed=0,1": f"{SWEEP} got runs/a for 2 runs; write 'out=runs/a-${{hydra:job.num}}'",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """No test of this file leaves anything in its working folder."""
    monkeypatch.chdir(tmp_path)
    yield
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("it's here", "a,b", "configs")] == []


def test_every_mistake_is_answered_in_one_line():
    wrong = {}
    for line, message in REFUSED.items():
        try:
            answer = f"accepted as {read_run_options('train', shlex.split(line)).arguments}"
        except ValueError as error:
            answer = str(error)
        if answer != message:
            wrong[line] = answer
    assert not wrong
    for line, message in {
        "gama=1": "did you mean 'gamma'?",
        "seed=x": "seed must be an int",
        "out=": "out must",
    }.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            read_run_options("estimators", [line])


def test_good_command_lines_are_taken_as_hydra_takes_them(tmp_path):
    def outs(*arguments: str) -> list[str]:
        return [config.out for config in read_run_options("train", arguments).configs]

    assert outs("out='my run'") == ["my run"] and outs('out="a,b"') == ["a,b"]
    assert outs("seed=${data.num_rows}", "out=runs/${seed}") == ["runs/32"]
    assert outs("-m", "seed=0,1", "seed=3", "out=runs/x") == ["runs/x"]
    assert outs("-m", "model=tiny,small", "out=runs/${model.preset}") == ["runs/tiny", "runs/small"]
    assert outs("seed=range(2)", "--multirun", "out=runs/${hydra:job.num}") == ["runs/0", "runs/1"]
    assert outs("experiment=glob(gamma*)", "-m")[0].startswith("runs/gamma-grid/")
    assert outs("hydra.mode=MULTIRUN", "seed=0,1", "out=runs/${seed}") == ["runs/0", "runs/1"]
    for flags in (["-cjob"], ["-c", "job"], ["--info", "all"], ["--hydra-help"], ["-sc", "install=bash"]):
        line = read_run_options("train", flags)
        assert line.arguments == flags and not line.configs
    line = read_run_options("train", ["seed=1", "-c", "job", "data=files"])  # shown, so nothing has to be given
    assert line.arguments == ["-c", "job", "seed=1", "data=files"]
    read_run_options("train", ["-c", "job", "compare.systems=[mine]", "compare.variants={mine: {recipe: ours}}"])
    (tmp_path / "configs" / "experiment").mkdir(parents=True)
    (tmp_path / "configs" / "experiment" / "mine.yaml").write_text("# @package _global_\nout: runs/mine\n")
    assert outs("--config-dir", "configs", "experiment=mine") == ["runs/mine"]


def test_grids_have_as_many_runs_as_they_say_each_in_its_folder(monkeypatch):
    monkeypatch.setattr(overrides, "compose", compose_once)
    for name, count in {"rate-sweep": 3, "estimator-grid": 6, "gamma-grid": 7}.items():
        folders = {config.out for config in read_run_options("train", [f"experiment={name}", "-m"]).configs}
        assert len(folders) == count, name


def test_whole_numbers_are_integers_and_dictionaries_need_no_plus():
    typed = ["optim.total_bytes=1e6", "data.limit=2e2", "optim.lr=1e1", "model.overrides.width=6.4e1"]
    line = read_command_line("train", [*typed, "segmenter.options.hidden=3", "compare.options.bpe.vocabulary=4"])
    expected = ["optim.total_bytes=1000000", "data.limit=200", "optim.lr=1e1", "++model.overrides.width=64"]
    assert line.arguments[:4] == expected
    (config,) = line.configs
    assert config.segmenter.options == {"hidden": 3} and config.compare.options == {"bpe": {"vocabulary": 4}}
    assert read_command_line("train", ["-m", "data.limit=2e2,null"]).arguments == ["-m", "data.limit=200,null"]


#: Who draws, an option of the policy, and whether both together are refused.
DRAWING = ["actor=uniform", "actor.name=random", "segmenter=hnet", "segmenter.name=bpe"]
OF_POLICY = ["estimator=discounted_return", "estimator.gamma=0.9", "estimator.options.span=8", "baseline=group_mean"]
OF_POLICY += ["baseline.rows_per_text=2", "rate=hinge", "rate.coefficient=0.1", "loss=ppo", "loss=reinforce"]
OF_POLICY += ["loss.policy=0.1", "loss.entropy=0.1", "loss.policy_epochs=3", "actor.warm_start_bytes=100"]
TOGETHER = {
    "segmenter=hnet actor=uniform": "actor=uniform",
    "segmenter=hnet actor=warm_start": "actor=warm_start",
    "segmenter=hnet actor.rate=0.5": "actor.rate=0.5",
    "segmenter=learned-w0 actor=uniform loss=ppo": "loss=ppo",
    "segmenter=learned-w0 actor=warm_start loss=ppo segmenter.options.num_lags=1": None,
    "segmenter=hnet actor=learned loss=released loss.early_exit=0.2": None,
    "actor=uniform actor.rate=0.5 loss=released loss.language_model=2": None,
    "actor=uniform actor=warm_start loss=ppo": None,
    "experiment=recall segmenter=hnet segmenter.options.rate=0.3": None,
    "estimator=local_flips baseline=none rate=hinge": None,
}


def refused_policy(*arguments: str) -> str | None:
    try:
        check_policy(OverridesParser.create().parse_overrides(list(arguments)))
    except ValueError as error:
        return str(error)
    return None


def test_options_of_a_policy_are_refused_if_none_is_learned():
    for place, option in enumerate(OF_POLICY):
        drawing = DRAWING[place % len(DRAWING)]
        group = drawing.partition("=")[0].partition(".")[0]
        message = f"{option} belongs to a policy that is learned, got {drawing}"
        assert refused_policy(option, drawing) == refused_policy(drawing, option, "seed=1") == message
        assert refused_policy(option, f"{group}=learned") is None
        assert refused_policy(option, drawing, f"{group}=learned") is None  # the last one counts
        assert refused_policy(option, f"{group}=learned,uniform") is None  # of other runs of a sweep
    for line, refused in TOGETHER.items():
        expected = None if refused is None else f"{refused} belongs to a policy that is learned"
        message = refused_policy(*line.split())
        assert (message or "").startswith(expected) if expected else message is None, line


@pytest.mark.parametrize("text", ["it's", "a\\b", "a\\", "a\\'b", "a\\\\'", "x, y=[1]", "\\\\server\\", ""])
def test_hydra_reads_a_quoted_text_as_it_is(text):
    assert OverridesParser.create().parse_override(f"out={quoted(text)}").value() == text


@pytest.mark.parametrize("name", ["it's here", "a,b"])
def test_a_quoted_folder_leaves_no_stray_folder(name, tmp_path):
    option = f"out={quoted(f'{name}/run')}"
    assert read_run_options("train", [option]).configs[0].out == f"{name}/run"
    (tmp_path / name).mkdir()
    read_run_options("train", [option])
    assert not list((tmp_path / name).iterdir())


def test_a_refused_run_or_sweep_leaves_nothing_behind(tmp_path):
    for arguments, message in (
        (["estimator.gamma=5"], "estimator.gamma must lie in [0, 1], got 5.0"),
        (["data.source=nosuch", "out=runs/deep/x"], "data.source must be one of"),
        (["-m", "seed=0,1", "out=runs/${seed}", "data.source=nosuch"], "data.source must be one of"),
        (["compute.device=meta:x"], "compute.device 'meta:x' cannot be used: Invalid device string: 'meta:x'"),
        (["model.overrides.window=abc"], "model.overrides.window must be"),
        (
            ["-m", "estimator.gamma=0.5,7", "out=runs/${estimator.gamma}"],
            "run 1 of the sweep: estimator.gamma must lie in [0, 1], got 7.0",
        ),
    ):
        done = run_forked("rltok_rl.experiments.train", *arguments, cwd=tmp_path)
        assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
        assert done.stderr.startswith(f"rltok train: {message}")
        assert "Launching" not in done.stdout or "data.source" in message  # a run is refused before the first begins
        assert not list(tmp_path.iterdir())


PAGES = ("README.md", "docs/claims.md", "docs/training.md", "docs/tutorials/data.md")


def commands_on(page: Path) -> list[str]:
    """Command lines of ``rltok train`` on a page."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"`rltok train ([^`\n]+)`", text) + re.findall(r"^    rltok train ([^#\n]+)", text, flags=re.M)
    return [line.strip() for line in lines if "..." not in line and "[^" not in line]


def test_commands_on_pages_can_be_typed(monkeypatch):
    """Composed and checked, not trained."""
    monkeypatch.setattr(overrides, "compose", compose_once)
    lines = {page: commands_on(ROOT / page) for page in PAGES}
    assert all(lines.values())
    for line in dict.fromkeys(sum(lines.values(), [])):
        read_run_options("train", [word for word in shlex.split(line) if not word.startswith("hydra")])
