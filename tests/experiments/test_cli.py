"""The command rltok: help, versions and mistakes, answered quickly."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from rltok_rl.agents.segmenters import SEGMENTERS
from rltok_rl.experiments.cli import COMMANDS, main
from rltok_rl.experiments.commands import help as option_help
from rltok_rl.experiments.commands import parsers, schema
from rltok_rl.experiments.commands.overrides import option_types
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.studies.candidates import CANDIDATES
from rltok_rl.experiments.texts import BUILT_IN

from rltok_rl.evaluation import POLICIES, detail, tasks
from rltok_rl.functional.rewards import RELATIVE, REWARDS
from rltok_rl.models.pretrained import PACKAGED
from rltok_rl.version import __version__
from rltok_rl.viz.style import FORMATS

QUICK = [["--help"], ["--version"], ["trian"], ["segment", "--nosuch"], ["generate", "a", "--temperature", "-1"]]
QUICK += [[name, "--help"] for name in COMMANDS]
QUICK += [["bench", "trainning"], ["info", "--hlep"], ["demo", "--out", ""], ["--verison"]]
MISTYPED = [["train", "optim.total_byte=3"], ["train", "model=tinny"], ["train", "estimator.gamma=abc"]]
MISTYPED += [["train", "--hlep"], ["train", "seed=1,2"], ["train", "out="], ["train", "model.overrides.widht=3"]]
MISTYPED += [["train", "--cfg", "job", "-m"], ["estimators", "--hlep"], ["estimators", "gama=0.9"]]


def test_help_versions_and_mistakes_import_no_torch():
    """One process answers them in turn; after each it has imported nothing heavy."""
    code = "import contextlib, sys\nfrom rltok_rl.experiments.cli import main\n"
    code += f"for given in {QUICK + MISTYPED!r}:\n"
    code += "    with contextlib.suppress(SystemExit):\n        main(given)\n"
    code += "    heavy = {'torch', 'gymnasium', 'numpy'} & set(sys.modules)\n"
    code += f"    heavy |= set() if given in {MISTYPED!r} else {{'hydra', 'omegaconf'}} & set(sys.modules)\n"
    code += "    assert not heavy, (given, heavy)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
    for message in (
        "did you mean 'train'?",
        "unrecognized arguments: --nosuch",
        "got 'trainning'; did you mean 'training'?",
        "must be a path, got ''",
        "did you mean 'optim.total_bytes'?",
        "must be a float, got 'abc'",
    ):
        assert message in done.stderr
    assert f"rltok {__version__}\n" in done.stdout and all(f"usage: rltok {name}" in done.stdout for name in COMMANDS)


def test_help_lists_every_group_choice_and_option():
    page = option_help.train()
    for name in (name for name in option_types(TrainConfig) if not name.startswith("model.overrides.")):
        assert f"\n  {name}: " in page, name
    for group in (*schema.group_schemas(), "experiment"):
        if (schema.CONF / group).is_dir():
            assert f"\n{group}=CHOICE" in page
            for word in schema.choices(group):
                about = schema.comment(schema.CONF / group / f"{word}.yaml")
                assert about and f"\n  {word:<24}{about.split()[0]}" in page, f"{group}={word}"
    assert page.count("\n  rltok train ") >= 3
    options = schema.schemas(schema.HERE / "studies" / "estimator_options.py")["EstimatorOptions"].options
    assert len(options) > 15 and all(option.description for option in options)
    assert all(f"\n  {option.name}: " in option_help.estimators() for option in options)


def test_names_in_the_parsers_are_those_of_the_library():
    assert parsers.PACKAGED == tuple(PACKAGED) and set(parsers.BUILT_IN) == set(BUILT_IN)
    assert parsers.REWARDS == (*REWARDS, RELATIVE)
    assert parsers.FORMATS == FORMATS and parsers.TASKS == tuple(tasks.TASKS)
    assert parsers.BASELINES == tuple(detail.BASELINES) and parsers.COMPARING == detail.COMPARING
    assert parsers.POLICIES == POLICIES
    of_studies = {
        "decision",
        "control_variate",
        "token_gain_8",
        "shared_gain_4",
        "shared_gain_8",
        "doubly_robust",
        "budgeted_flips",
    }
    of_studies |= {name for name in CANDIDATES if name.startswith("sibling_trial")}
    assert {*parsers.CREDITED} == {name for name in CANDIDATES if "critic" not in name} - of_studies
    assert {*parsers.REFERENCES} <= {*SEGMENTERS}
    assert {*parsers.OPTIONS, *option_help.PAGES} == {*COMMANDS}


def test_every_command_has_a_module_with_a_main_function():
    for module, _ in COMMANDS.values():
        path = importlib.util.find_spec(f"rltok_rl.experiments.{module}").origin
        with open(path) as file:
            assert "\ndef main(" in file.read(), module


def test_wrong_values_are_named_by_their_option(capsys):
    for arguments, message in (
        (["segment", "--rate", "2", "a"], "argument --rate: must be a number between 0 and 1, got '2'"),
        (["generate", "a", "--top-p", "0"], "argument --top-p: must be a number in (0, 1], got '0'"),
        (["view", "a", "--gamma", "x"], "argument --gamma: must be a number in [0, 1], got 'x'"),
        (["rate-control", "--updates", "5"], "argument --updates: must be an integer of at least 200, got '5'"),
        (["demo", "--seconds", "10"], "argument --seconds: must be a number of at least 60, got '10'"),
        (["demo", "--seconds", "nan"], "argument --seconds: must be a number of at least 60, got 'nan'"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2 and message in capsys.readouterr().err


def test_usage_info_and_unknown_commands(capsys, monkeypatch):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert main(["info"]) == 0 and "torchrl" in capsys.readouterr().out
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "rltok: 'trian' is not a command; did you mean 'train'?\n"
    assert main(["nothing-like-it"]) == 2
    assert "is not a command; commands are train, segment" in capsys.readouterr().err
    assert parsers.make_parser("segment", "").parse_args(["--she said"]).text == "--she said"
    assert parsers.make_parser("segment", "").parse_args(["--", "--seed"]).text == "--seed"

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupt)
    assert main(["segment", "some text"]) == 130


def test_help_ends_quietly_when_its_reader_has_left():
    """`rltok train --help | head -1`."""
    command = [sys.executable, "-m", "rltok_rl.experiments.cli", "train", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 0
