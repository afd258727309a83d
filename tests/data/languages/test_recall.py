"""The recall language, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.data.languages import Recall
from rltok_rl.data.languages.gaps import Gaps
from rltok_rl.text import ids_to_bytes, text_to_ids


def marks(language, text: str) -> str:
    """``|`` under every byte that a boundary follows."""
    return "".join(".|"[int(x)] for x in language.optimal_boundaries(text_to_ids(text)))


def test_boundaries_follow_the_values_of_keys_and_nothing_else():
    assert marks(Recall(fillers="abch"), "#0abc?0#3h?3#1aa") == "||......|....|.."
    assert marks(Recall(), "#") == "|"


def test_a_window_shorter_than_the_gap_leaves_exactly_the_price_of_a_value():
    language = Recall(values="0123", shortest_gap=3, mean_gap=6.0)
    byte_ids = language.draw(32, 200, torch.Generator().manual_seed(0)).byte_ids
    answers = torch.zeros_like(byte_ids, dtype=torch.bool)
    answers[:, 1:] = byte_ids[:, :-1] == ord("?")
    assert (language.ideal_log_prob(byte_ids)[answers] == 0).all()
    blind = language.floor_log_prob(byte_ids, window=4)[answers]  # "#v" + 3 filler bytes + "?": 4 bytes miss v
    torch.testing.assert_close(blind, torch.full_like(blind, -math.log(4)), atol=1e-12, rtol=0)
    sees = language.floor_log_prob(byte_ids, window=5)[answers]
    assert set(sees.exp().round(decimals=9).tolist()) == {0.25, 1.0}


@pytest.mark.parametrize("window", [8, 9, 20])
def test_memoryless_gaps_leave_nothing_to_count(window):
    """From the shortest gap on, all that a window misses is the value, where it is out of sight."""
    language = Recall(values="0123", shortest_gap=8, mean_gap=12.0, window=window)
    hidden = (4 / 5) ** (window - 1 - 8)  # P(g > window - 2)
    expected = math.log(4) * min(hidden, 1.0) / (4 + 12)
    assert language.optimal_return_per_byte == pytest.approx(expected, abs=1e-12)


def test_closed_forms_by_hand():
    language = Recall(values="01", fillers="ab", shortest_gap=2, mean_gap=2.0, window=1)  # gaps of 2, always
    assert language.entropy_rate == pytest.approx(3 * math.log(2) / 6)
    assert language.floor_rate(window=2) == pytest.approx(4 * math.log(2) / 6)
    # One byte: after a value two ways to go on, and after a filler byte another one or the query.
    assert language.floor_rate() == pytest.approx((4 + 2 + 2) * math.log(2) / 6)


def test_records_are_what_they_should_be():
    language = Recall(separator=";", shortest_gap=1, mean_gap=2.0, gap_law="uniform")
    text = ids_to_bytes(language.draw(1, 4000, torch.Generator().manual_seed(0)).byte_ids[0]).decode()
    records = text.split(";")[:-1]
    assert len(records) > 500
    for record in records:
        assert record[0] == "#" and record[1] in "01234567" and record[-2:] == "?" + record[1]
        assert 1 <= len(record) - 4 <= 3 and set(record[2:-2]) <= set("abcd")


@pytest.mark.parametrize("law", ["memoryless", "uniform"])
def test_gaps_are_drawn_as_their_law_says(law):
    gaps = Gaps(law, 2, 5.0)
    drawn = gaps.draw((40_000,), torch.Generator().manual_seed(0))
    assert gaps.mean == pytest.approx(5.0)
    for k in range(12):
        p = float(gaps.at_least(k))
        assert abs((drawn >= k).double().mean().item() - p) <= 5 * math.sqrt(p * (1 - p) / 40_000)
    chances = [float(gaps.at_least(k) - gaps.at_least(k + 1)) for k in range(300)]
    assert sum(chances) == pytest.approx(1.0)
    assert gaps.entropy == pytest.approx(-sum(p * math.log(p) for p in chances if p > 0))
    for k in range(6):
        later = sum(float(gaps.at_least(j)) for j in range(k, 400))
        assert float(gaps.tail(k)) == pytest.approx(later)
        assert float(gaps.blurred_hazard(k)) == pytest.approx(sum(chances[k:]) / later)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"values": "0"}, "values must hold at least 2 characters, got '0'"),
        ({"fillers": ""}, "fillers must hold at least 1 character"),
        ({"fillers": "ab0"}, "fillers must have characters of its own, got '0', also in values"),
        ({"separator": ";;"}, "separator must have characters of its own, got ';', also in separator"),
        ({"values": "0\n"}, r"values must be printable ASCII without spaces, got '\\n'"),
        ({"shortest_gap": -1}, "shortest_gap must be an integer of at least 0, got -1"),
        ({"mean_gap": 3.0}, "mean_gap must be finite and at least shortest_gap=6, got 3.0"),
        ({"gap_law": "even"}, r"gap_law must be one of \['memoryless', 'uniform'\], got 'even'"),
        (
            {"gap_law": "uniform", "mean_gap": 9.3},
            "mean_gap must be a whole or a half number .* got 9.3",
        ),
    ],
)
def test_misuse(options, message):
    with pytest.raises(ValueError, match=message):
        Recall(**options)
