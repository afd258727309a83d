"""The command boundaries: its output is the functions', and mistakes are refused."""

from __future__ import annotations

import json

import pytest
import torch
from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import make_segmenter, save_segmenter, train_bpe
from rltok_rl.experiments.commands import arguments, boundaries, parsers
from rltok_rl.experiments.reports.markdown import without_nan
from rltok_rl.experiments.texts import remember_texts

from rltok_rl import UNet, preset
from rltok_rl.data import local_prose
from rltok_rl.evaluation import boundary_match, boundary_metrics, cohen_kappa, join_texts
from rltok_rl.functional.boundary_rules import spacebyte
from rltok_rl.models import segment
from rltok_rl.text import text_to_ids

from .configured import configured

TEXT = ("To be, or not to be,\nthat is the question: é €. " * 8).encode()


def saved(folder, seed: int, **options) -> str:
    torch.manual_seed(seed)
    model = UNet(preset("tiny", **{"boundary_scale": 1.0, "target_rate": 0.3, **options}))
    return str(model.save_pretrained(folder))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[str]:
    """Two seeds, and a model with more ids than the bytes."""
    root = tmp_path_factory.mktemp("models")
    return [saved(root / "one", 1), saved(root / "two", 2), saved(root / "three", 3, num_special=64, num_lags=0)]


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return str(path)


def test_metrics_are_those_of_the_functions(folders, file, metrics_of):
    one, rules = folders[0], [name for name in parsers.REFERENCES if name not in boundaries.TOKENIZERS]
    results = metrics_of(boundaries, one, "--text", file, "--seed", 3, "--against", *rules)
    drawn = join_texts([segment(UNet.from_pretrained(one), TEXT, generator=torch.Generator().manual_seed(3))])
    metrics = results["models"][one]
    against = metrics.pop("against")
    assert metrics == json.loads(json.dumps(without_nan(boundary_metrics(drawn)))) and "agreement" not in results
    assert list(against) == rules and [row["shift"] for row in against["spacebyte"]] == [-1, 0, 1]
    for row in against["spacebyte"]:
        match = boundary_match(drawn.boundaries, spacebyte(text_to_ids(TEXT)), drawn.counted, shift=row.pop("shift"))
        assert row == without_nan(vars(match))
    assert all(value is not None for rows in against.values() for value in rows[1].values())


def test_references_are_not_moved_into_another_text(folders, metrics_of, monkeypatch):
    """Four bytes away from each space lies a byte of the other text, but none of its own."""
    monkeypatch.setattr(arguments, "find_documents", lambda *_: ("two", [b"abc d", b"a bcd"]))
    results = metrics_of(boundaries, folders[0], "--text", "two", "--against", "whitespace", "--shift", -4, 4)
    (rows,) = results["models"][folders[0]]["against"].values()
    assert [row["recall"] for row in rows] == [None, None]  # no boundary of the reference is left


def test_page_shows_the_metrics(folders, file, output, metrics_of):
    options = [folders[0], "--text", file, "--tolerance", 1]
    lines = output(boundaries, *options).splitlines()
    metrics = metrics_of(boundaries, *options)["models"][folders[0]]
    by_start = {line.split()[0]: line for line in lines if line.strip()}
    assert lines[0].split() == ["model", folders[0]] and max(map(len, lines[2:])) <= 100
    assert f"{metrics['rate']:.4f} per byte" in lines[2]
    digits = {"share": 3, "chance": 3, "lift": 2, "covered": 3}
    assert by_start["white"].split()[2:] == [f"{metrics['white_space'][key]:.{n}f}" for key, n in digits.items()]
    row = next(line.split() for line in lines if line.split()[:2] == ["spacebyte", "0"])
    assert row[4] == f"{metrics['against']['spacebyte'][1]['f1']:.3f}"
    assert "against (partners at most 1 byte apart)" in "\n".join(lines)


def test_several_models_have_a_matrix_per_measure(folders, file, metrics_of, output):
    agreement = metrics_of(boundaries, *folders, "--text", file)["agreement"]
    assert agreement["names"] == [*folders, "spacebyte"]
    for key in ("kappa", "f1", "jaccard", "correlation"):
        matrix = agreement[key]
        assert len(matrix) == 4 and all(matrix[i][j] == matrix[j][i] for i in range(4) for j in range(4))
        assert matrix[3][3] == 1.0 and matrix[0][0] < 1.0  # two draws of one policy differ
    lines = output(boundaries, *folders, "--text", file).splitlines()
    place = lines.index("Cohen's kappa: agreement beyond chance")
    assert [float(x) for x in lines[place + 2].split()[2:]] == [round(x, 3) for x in agreement["kappa"][0]]


def test_greedy_models_are_their_own_second_draw(folders, file, metrics_of):
    options = [*folders[:2], "--text", file, "--greedy"]
    agreement = metrics_of(boundaries, *options)["agreement"]
    models = [UNet.from_pretrained(folder) for folder in folders[:2]]
    one, two = (join_texts([segment(model, TEXT, greedy=True)]) for model in models)
    assert agreement["kappa"][0][0] == agreement["correlation"][1][1] == 1.0
    pair = (one.boundaries, two.boundaries, one.counted)
    assert agreement["kappa"][0][1] == pytest.approx(cohen_kappa(*pair))
    near = metrics_of(boundaries, *options, "--tolerance", 2)["agreement"]
    assert near["f1"][0][1] == pytest.approx(boundary_match(*pair, tolerance=2).f1) != agreement["f1"][0][1]


def test_a_run_brings_its_text_and_the_text_of_its_tokenizer(tmp_path, folders, metrics_of, capsys):
    config = configured()
    (tmp_path / "text.txt").write_bytes(local_prose(30_000))
    config.data.source, config.data.held_out, config.data.num_steps = str(tmp_path / "text.txt"), 0.1, 128
    config.data.cache = str(tmp_path / "cache")
    run = tmp_path / "run"
    saved(run / "model", 1)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
    remember_texts(config.data)
    results = metrics_of(boundaries, run, "--against", "bpe", "--shift", -1, "--vocabulary", 300)
    metrics = results["models"][str(run)]
    assert results["text"] == f"held out of {tmp_path / 'text.txt'}" and metrics["bytes"] == 2999
    ((row,),) = metrics["against"].values()
    assert row["shift"] == -1 and 0 < row["f1"] < 1
    assert boundaries.main([str(run), folders[1], "--bytes", "200"]) == 0
    assert f"note: {folders[1]} may have been trained on the held-out text of {run}" in capsys.readouterr().err


def test_tokenizers_are_read_or_trained(folders, file, tmp_path, metrics_of, refused):
    text, model = local_prose(20_000), UNet(preset("tiny"))
    (tmp_path / "known.txt").write_bytes(text)
    common = [folders[0], "--text", file, "--against", "bpe", "--shift", 0]
    trained = metrics_of(boundaries, *common, "--train-on", tmp_path / "known.txt", "--vocabulary", 300)
    split = train_bpe([text[at : at + 4096].decode() for at in range(0, len(text), 4096)], vocabulary=300)
    ours = boundaries.trained_tokenizer("bpe", model, run=None, text=text, rate=0.3, vocabulary=300)
    assert ours(TEXT) == split(TEXT)
    folder, segmenter = tmp_path / "run" / "model", make_segmenter("bpe", model, tokenizer=split)
    save_segmenter(folder, segmenter, model, name="bpe", options={})
    for path in (tmp_path / "run", folder / "tokenizer.json"):
        assert metrics_of(boundaries, *common, "--tokenizer", path)["models"] == trained["models"]
    ((row,),) = metrics_of(boundaries, *common, "--train-on", file)["models"][folders[0]]["against"].values()
    assert row["precision"] == pytest.approx(row["recall"], rel=0.1)  # as many tokens as the model draws boundaries
    (tmp_path / "broken.json").write_text("{}")
    for name, message in (("broken.json", "broken.json must be a tokenizer"), ("no", "must be a tokenizer.json or a")):
        assert message in refused(boundaries, *common, "--tokenizer", tmp_path / name)


def test_any_bytes_have_metrics_or_null(folders, tmp_path, metrics_of, output):
    for content in (b"abcdefgh", bytes(range(256)), "日本語のテキスト".encode(), b"\xff\xff\xff"):
        (tmp_path / "bytes").write_bytes(content)
        metrics = metrics_of(boundaries, *folders[:2], "--text", tmp_path / "bytes", "--greedy")["models"][folders[0]]
        assert metrics["bytes"] == len(content) - 1
        if not any(bytes([b]).isspace() for b in content):
            assert metrics["white_space"]["covered"] is None
        assert "boundaries at" in output(boundaries, folders[0], "--text", tmp_path / "bytes")


def test_mistakes_are_refused(folders, file, tmp_path, refused):
    one, two = folders[:2]
    (tmp_path / "empty").touch()
    bpe = ["--against", "bpe"]
    for models, options, message in (
        ([], [], "the following arguments are required: MODEL"),
        (["nope"], [], "argument MODEL: must be a folder of save_pretrained, a run's folder"),
        ([one], [], f"the following arguments are required: --text ({one} is not the folder of a run)"),
        ([one, one], ["--text", file], f"every model must be named once, got {one} 2 times"),
        ([one, two], ["--text", file, "--shift", 1], "argument --shift: belongs to a single model, got several"),
        ([one], ["--text", tmp_path / "empty"], "must hold at least 2 bytes, got 0"),
        ([one], ["--text", tmp_path / "nowhere"], "nowhere cannot be read"),
        ([one], ["--text", file, "--against", "hnet"], "invalid choice: 'hnet'"),
        ([one], ["--text", file, *bpe], "argument --against: bpe needs --tokenizer or --train-on"),
        ([one], ["--text", file, "--vocabulary", 300], "--vocabulary: belongs to bpe and unigram in --against"),
        ([one], ["--text", file, *bpe, "--train-on", tmp_path / "no"], "no cannot be read"),
        (
            [one],
            ["--text", file, *bpe, "--tokenizer", tmp_path, "--vocabulary", 300],
            "argument --vocabulary: belongs to tokenizers that are trained, not --tokenizer",
        ),
        ([tmp_path], ["--text", file], "must hold config.json"),
        ([one], ["--text", file, "--rate", 0.3], "argument --rate"),
        ([one], ["--text", file, "--tolerance", -1], "must be an integer of at least 0"),
    ):
        assert message in refused(boundaries, *models, *options), message
