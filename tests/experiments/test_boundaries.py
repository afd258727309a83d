"""The command boundaries: what it writes, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import make_segmenter, save_segmenter, train_bpe
from rltok_rl.experiments.commands import boundaries, parsers
from rltok_rl.experiments.reports import markdown

from rltok_rl import UNet, preset
from rltok_rl.data import local_prose
from rltok_rl.evaluation import boundary_match, boundary_metrics, cohen_kappa, join_texts
from rltok_rl.functional.boundary_rules import spacebyte
from rltok_rl.models import segment
from rltok_rl.text import text_to_ids

from .configured import configured
from .test_commands import refused

TEXT = ("To be, or not to be,\nthat is the question: é €. " * 8).encode()


def saved(folder, seed: int, **options) -> str:
    torch.manual_seed(seed)
    model = UNet(preset("tiny", **{"boundary_scale": 1.0, "target_rate": 0.3, **options}))
    return str(model.save_pretrained(folder))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[str]:
    """Two seeds, and a model with other ids beside the bytes."""
    root = tmp_path_factory.mktemp("models")
    return [saved(root / "one", 1), saved(root / "two", 2), saved(root / "three", 3, num_special=64, num_lags=0)]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_bytes(TEXT)
    return str(path)


def metrics_of(arguments, capsys) -> dict:
    assert boundaries.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_figures_are_those_of_the_functions(folders, file, capsys):
    found = metrics_of([folders[0], "--text", file, "--seed", "3", "--against", "spacebyte", "whitespace"], capsys)
    model = UNet.from_pretrained(folders[0])
    drawn = join_texts([segment(model, TEXT, generator=torch.Generator().manual_seed(3))])
    own = found["models"][folders[0]]
    against = own.pop("against")
    assert own == json.loads(json.dumps(markdown.without_nan(boundary_metrics(drawn))))
    assert list(against) == ["spacebyte", "whitespace"]
    reference = spacebyte(text_to_ids(TEXT))
    for row in against["spacebyte"]:
        given = {"shift": row.pop("shift")}
        match = boundary_match(drawn.boundaries, reference, drawn.counted, **given)
        assert row == markdown.without_nan(vars(match))
    assert len(against["spacebyte"]) == 3 and "agreement" not in found


def test_references_are_not_moved_into_another_text(folders, capsys, monkeypatch):
    """Four bytes away from each space lies a byte of the other text, but none of its own."""
    monkeypatch.setattr(boundaries, "find_documents", lambda *_: ("two", [b"abc d", b"a bcd"]))
    found = metrics_of([folders[0], "--text", "two", "--against", "whitespace", "--shift", "-4", "4"], capsys)
    (rows,) = found["models"][folders[0]]["against"].values()
    assert [row["recall"] for row in rows] == [None, None]  # no boundary of the reference is left


def test_a_page_can_be_read(folders, file, capsys):
    assert boundaries.main([folders[0], "--text", file, "--tolerance", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = metrics_of([folders[0], "--text", file, "--tolerance", "1"], capsys)["models"][folders[0]]
    by_start = {line.split()[0]: line for line in lines if line.strip()}
    assert lines[0].split() == ["model", folders[0]] and max(map(len, lines[2:])) <= 100
    assert f"{found['rate']:.4f} per byte" in lines[2]
    space = found["white_space"]
    assert by_start["white"].split()[2:] == [f"{space[key]:.{n}f}" for key, n in PLACES]
    row = [line.split() for line in lines if line.split()[:2] == ["spacebyte", "0"]][0]
    assert row[4] == f"{found['against']['spacebyte'][1]['f1']:.3f}"
    assert "against (partners at most 1 byte apart)" in "\n".join(lines)


PLACES = (("share", 3), ("chance", 3), ("lift", 2), ("covered", 3))


def test_several_models_have_a_matrix(folders, file, capsys):
    found = metrics_of([*folders, "--text", file], capsys)
    agreement = found["agreement"]
    assert agreement["names"] == [*folders, "spacebyte"]
    for key in ("kappa", "f1", "jaccard", "correlation"):
        matrix = agreement[key]
        assert len(matrix) == 4 and all(matrix[i][j] == matrix[j][i] for i in range(4) for j in range(4))
        assert matrix[3][3] == 1.0 and matrix[0][0] < 1.0  # two draws of one policy are not the same
    assert boundaries.main([*folders, "--text", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("Cohen's kappa: agreement beyond chance")
    assert [float(x) for x in lines[place + 2].split()[2:]] == [round(x, 3) for x in agreement["kappa"][0]]


def test_greedy_models_are_their_own_second_draw(folders, file, capsys):
    found = metrics_of([*folders[:2], "--text", file, "--greedy"], capsys)["agreement"]
    models = [UNet.from_pretrained(folder) for folder in folders[:2]]
    drawn = [join_texts([segment(model, TEXT, greedy=True)]) for model in models]
    assert found["kappa"][0][0] == found["correlation"][1][1] == 1.0
    expected = cohen_kappa(drawn[0].boundaries, drawn[1].boundaries, drawn[0].counted)
    assert found["kappa"][0][1] == pytest.approx(expected)
    near = metrics_of([*folders[:2], "--text", file, "--greedy", "--tolerance", "2"], capsys)["agreement"]
    given = (drawn[0].boundaries, drawn[1].boundaries, drawn[0].counted)
    assert near["f1"][0][1] == pytest.approx(boundary_match(*given, tolerance=2).f1) != found["f1"][0][1]


def test_a_run_brings_its_text_and_the_text_of_its_tokenizer(tmp_path, folders, capsys):
    config = configured()
    (tmp_path / "text.txt").write_bytes(local_prose(30_000))
    config.data.source, config.data.held_out, config.data.num_steps = str(tmp_path / "text.txt"), 0.1, 128
    config.data.cache = str(tmp_path / "cache")
    run = tmp_path / "run"
    saved(run / "model", 1)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
    found = metrics_of([run, "--against", "bpe", "--shift", "-1", "--vocabulary", "300"], capsys)
    own = found["models"][str(run)]
    assert found["text"] == f"held out of {tmp_path / 'text.txt'}" and own["bytes"] == 2999
    ((row,),) = own["against"].values()
    assert row["shift"] == -1 and 0 < row["f1"] < 1
    assert boundaries.main([str(run), folders[1], "--bytes", "200"]) == 0
    assert f"note: {folders[1]} may have been trained on the held-out text of {run}" in capsys.readouterr().err


def test_tokenizers_are_taken_or_trained(folders, file, tmp_path, capsys):
    (tmp_path / "known.txt").write_bytes(local_prose(20_000))
    common = [folders[0], "--text", file, "--against", "bpe", "--shift", "0"]
    trained = metrics_of([*common, "--train-on", tmp_path / "known.txt", "--vocabulary", "300"], capsys)
    text = local_prose(20_000)
    split = train_bpe([text[at : at + 4096].decode() for at in range(0, len(text), 4096)], vocabulary=300)
    assert boundaries.trained_tokenizer("bpe", UNet(preset("tiny")), run=None, text=text, rate=0.3, vocabulary=300)(
        TEXT
    ) == split(TEXT)
    model = UNet(preset("tiny"))
    save_segmenter(
        tmp_path / "run" / "model", make_segmenter("bpe", model, tokenizer=split), model, name="bpe", options={}
    )
    for path in (tmp_path / "run", tmp_path / "run" / "model" / "tokenizer.json"):
        taken = metrics_of([*common, "--tokenizer", path], capsys)
        assert taken["models"] == trained["models"]
    ((row,),) = metrics_of([*common, "--train-on", file], capsys)["models"][folders[0]]["against"].values()
    assert row["precision"] == pytest.approx(row["recall"], rel=0.1)  # as many pieces as the model draws boundaries
    (tmp_path / "broken.json").write_text("{}")
    assert "broken.json must be a tokenizer" in refused(
        boundaries, [*common, "--tokenizer", tmp_path / "broken.json"], capsys
    )
    assert "must be a tokenizer.json or a folder" in refused(
        boundaries, [*common, "--tokenizer", tmp_path / "no"], capsys
    )


def test_every_rule_can_be_compared_with(folders, file, capsys):
    rules = [name for name in parsers.REFERENCES if name not in boundaries.TOKENIZERS]
    found = metrics_of([folders[0], "--text", file, "--against", *rules, "--shift", "0"], capsys)
    against = found["models"][folders[0]]["against"]
    assert list(against) == rules and all(value is not None for (row,) in against.values() for value in row.values())


def test_any_bytes_have_metrics_or_null(folders, tmp_path, capsys):
    for content in (b"abcdefgh", bytes(range(256)), "日本語のテキスト".encode(), b"\xff\xff\xff"):
        (tmp_path / "bytes").write_bytes(content)
        found = metrics_of([*folders[:2], "--text", tmp_path / "bytes", "--greedy"], capsys)
        metrics = found["models"][folders[0]]
        assert metrics["bytes"] == len(content) - 1
        if not any(bytes([b]).isspace() for b in content):
            assert metrics["white_space"]["covered"] is None
        assert boundaries.main([folders[0], "--text", str(tmp_path / "bytes")]) == 0
        assert "boundaries at" in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused(folders, file, tmp_path, capsys):
    one, two = folders[:2]
    (tmp_path / "empty").touch()
    for arguments, message in (
        ([], "the following arguments are required: MODEL"),
        ([one], f"the following arguments are required: --text ({one} is not the folder of a run)"),
        ([one, one, "--text", file], f"every model must be named once, got {one} 2 times"),
        ([one, two, "--text", file, "--shift", "1"], "argument --shift: belongs to a single model, got several"),
        ([one, "--text", tmp_path / "empty"], "must hold at least 2 bytes, got 0"),
        ([one, "--text", tmp_path / "nowhere"], "nowhere cannot be read"),
        ([one, "--text", file, "--against", "hnet"], "invalid choice: 'hnet'"),
        ([one, "--text", file, "--against", "bpe"], "argument --against: bpe needs --tokenizer or --train-on"),
        (
            [one, "--text", file, "--vocabulary", "300"],
            "argument --vocabulary: belongs to bpe and unigram in --against",
        ),
        ([one, "--text", file, "--against", "bpe", "--train-on", tmp_path / "no"], "no cannot be read"),
        (
            [one, "--text", file, "--against", "bpe", "--tokenizer", tmp_path, "--vocabulary", "300"],
            "argument --vocabulary: belongs to tokenizers that are trained, not --tokenizer",
        ),
        ([tmp_path, "--text", file], "must hold config.json"),
        ([one, "--text", file, "--rate", "0.3"], "argument --rate"),
        ([one, "--text", file, "--tolerance", "-1"], "must be an integer of at least 0"),
    ):
        assert message in refused(boundaries, arguments, capsys), message
