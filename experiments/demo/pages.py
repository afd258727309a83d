"""The pages of the demo, in the order in which they are read. Every figure in them was measured in this run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.demo.race import Standing
from rltok_rl.experiments.demo.screen import Screen, left

from rltok_rl.training.progress import clock

_LOSS_SPAN = 1.5  # height of the little curve of bits per byte, in units of the lowest; above, it is drawn at its edge
_EDGES = {"last_letter": "at the last letter of a word", "space": "at the space after a word"}
_EDGES |= {"first_letter": "at the first letter of a word", "any": "at any of these"}


def welcome(screen: Screen, folder: Path, *, seconds: float, machine: str, resumed: bool) -> None:
    """What this is, what will happen, and for how long.

    Args:
        screen: to write on.
        folder: of the demo.
        seconds: for all of it.
        machine: in words.
        resumed: whether the folder's demo goes on.
    """
    screen.heading("rltok_rl: where should a token end? Learned, from rewards")
    screen.tell(
        "A byte-level language model groups bytes into tokens, and thinks in tokens. Others fix the groups before "
        "training. Here a policy decides after each byte whether a token ends, and is paid for good decisions:"
    )
    arrow = "──►" if screen.blocks else "-->"
    screen.say()
    screen.say(
        f"  bytes {arrow} {screen.paint('does a token end here?', 'good')} {arrow} tokens {arrow} the next bytes"
    )
    screen.say(
        f"  {screen.paint('reward: how much better the next bytes are predicted with tokens than without', 'quiet')}"
    )
    screen.say()
    screen.tell(
        "Now four small models are trained from nothing on this machine, two at a time. A pair starts from the same "
        "weights and reads the same bytes; one learns its boundaries, the other spaces them evenly. First a made-up "
        "language whose answer is known, then English. Ctrl-C saves, and the same command goes on."
    )
    screen.say()
    screen.say(f"  machine  {machine}")
    screen.say(f"  time     about {clock(seconds)} in all")
    screen.say(f"  folder   {folder}{', going on where it was stopped' if resumed else ''}")


def introduce(screen: Screen, name: str, decided: dict[str, Any]) -> None:
    """What a part is about.

    Args:
        screen: to write on.
        name: of the part.
        decided: how much it trains on.
    """
    if name == "recall":
        screen.heading("1 of 2  A language with a known answer")
        screen.say(f"  {screen.paint('#3dbaccadb?3#0bdabcbdca?0#7...', 'bold')}")
        screen.tell(
            "After # comes a value, then letters without meaning, then ? and the value again. When the answer is due, "
            "the value is too far back for the layers that read bytes: only a token that ended right after it can have "
            "carried it. Nobody tells the policy so. 0 is what a model without tokens can reach, 1 is all that tokens "
            "can earn."
        )
    else:
        screen.heading("2 of 2  English")
        screen.tell(
            "The Python language reference, which is on every machine with a Python. No answer is known here. Fewer "
            "bits per byte are better, and the policy has to keep to a budget of tokens."
        )
    speed = f"{decided['bytes_per_second'] / 1e3:.0f} kB/s measured"
    screen.say(
        screen.paint(
            f"  {decided['updates']} updates, {decided['total_bytes'] / 1e6:.2f} MB for each model ({speed}): "
            f"about {clock(decided['seconds'])}",
            "quiet",
        )
    )
    screen.say()


def watch(screen: Screen, name: str, standings: Sequence[Standing], seconds: float, last: bool) -> None:
    """Both trainings as they stand, drawn again and again.

    Args:
        screen: to write on.
        name: of the part.
        standings: of its trainings.
        seconds: since they were started.
        last: whether they are done.
    """
    lanes, notes = [], []
    losses = [look["held_out_bits_per_byte"] for one in standings for look in one.looks]
    span = (0.0, 1.0) if name == "recall" or not losses else (min(losses), _LOSS_SPAN * min(losses))
    for one in standings:
        key = "held_out_share" if name == "recall" else "held_out_bits_per_byte"
        values = [look[key] for look in one.looks[1:]]
        what = "of 1" if name == "recall" else "bits/byte"
        note = f"{values[-1]:.3f} {what}" if values else ""
        lanes.append(screen.lane(one.name, one.share_done, values, span, note))
        notes.append(f"{one.name} {one.share_done:.0%}{', ' + note if note else ''}")
    slowest = min(one.share_done for one in standings)
    ahead = f"done in {clock(seconds)}" if last else left(slowest, seconds)
    screen.live(
        [*lanes, f"  {screen.paint(ahead, 'quiet')}"], seconds=seconds, plain=f"{'; '.join(notes)}; {ahead}", last=last
    )


def result(screen: Screen, name: str, found: dict[str, Any]) -> None:
    """What a part found.

    Args:
        screen: to write on.
        name: of the part.
        found: its findings.
    """
    screen.say()
    if found["ended"] == "late":
        screen.tell("The time was up before all bytes were read: what follows is as far as it came.")
    learned, uniform = found["learned"], found["uniform"]
    if name == "recall":
        places = found["places"]
        style = "good" if learned["share"] > uniform["share"] else "bad"
        ours = screen.paint(f"learned {learned['share']:.2f}", style)
        screen.say(f"  Share of what tokens can earn (1 is all): {ours}, evenly spaced {uniform['share']:.2f}.")
        screen.say(
            f"  A token ends right after a value with probability {places['after_value']:.2f}, "
            f"elsewhere with {places['elsewhere']:.2f}."
        )
        return
    style = "good" if learned["bits_per_byte"] < uniform["bits_per_byte"] else "bad"
    ours = screen.paint(f"learned {learned['bits_per_byte']:.3f}", style)
    screen.say(
        f"  Bits per byte: {ours} at "
        f"{learned['rate']:.3f} tokens per byte, evenly spaced {uniform['bits_per_byte']:.3f} at {uniform['rate']:.3f}."
    )
    for key, where in _EDGES.items():
        edge = found["edges"][key]
        screen.say(f"  Tokens that end {where:<31} {edge['share']:>6.1%}, by chance {edge['chance']:>6.1%}")
