"""`blockyard proof`: the same conversations with ample memory and with a part of it."""

import time
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import get_args

import click

from blockyard._core import Misuse, Unavailable
from blockyard.crane.devices import DeviceName, device
from blockyard.reference.model import Model
from blockyard.reference.weights import ModelConfig
from blockyard.tools.endings import Broken
from blockyard.tools.help import Once
from blockyard.tools.proof.conversations import Conversation
from blockyard.tools.proof.play import MemoryBudget, Play
from blockyard.tools.proof.terminal import ProgressLine, Row, table

__all__ = ["proof"]

_PART = 4
"""What is parked, divided by this, fits the host where a third tier lies behind it."""
_SIZE = 8
"""Tokens per block: fewer than engines use, so that more blocks move."""


@click.command(cls=Once, epilog="Example: blockyard proof --conversations 4 --seed 7")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    help="Seed of conversations and weights.",
)
@click.option(
    "--conversations", type=click.IntRange(2, 1000), default=16, help="Number of conversations."
)
@click.option(
    "--squeeze", type=click.IntRange(1, 64), default=4, help="Divide the ample memory by this."
)
@click.option(
    "--on",
    "name",
    type=click.Choice(get_args(DeviceName)),
    default="memory",
    help="Compute with NumPy in main memory, or on a GPU.",
)
def proof(seed: int, conversations: int, squeeze: int, name: DeviceName) -> None:
    """Show that no request loses its work when memory runs out.

    A small Llama-shaped decoder, with real KV in real blocks, answers the same conversations five
    times: with ample memory; with a part of it, parking the requests that it preempts; with the
    same part, recomputing them; parking them again, with room on the host for a quarter of what was
    parked and a disk behind it; and once more after a restart, with what
    lies on that disk. On a GPU the disk is memory. Every token of every answer must be the
    same; where one differs, or a law is broken, the exit status is 3.
    """
    try:
        on = device(name)
    except Unavailable as error:
        raise Misuse(f"--on {name}: {error}") from error
    seeded = Conversation.seeded(seed, conversations)
    blocks = [-(-conversation.tokens // _SIZE) for conversation in seeded]
    ample, least = sum(blocks), max(blocks)
    tight = max(ample // squeeze, least)
    memories = {
        "ample": MemoryBudget(ample + 1, 0, "recompute"),
        "parking": MemoryBudget(tight + 1, ample, "park"),
        "recompute": MemoryBudget(tight + 1, ample, "recompute"),
    }
    model = Model(ModelConfig(), seed, xp=on.xp)
    plays = {
        name: Play(seeded, memory, model, block_size=_SIZE, on=on)
        for name, memory in memories.items()
    }
    turns = sum(len(conversation.turns) for conversation in seeded)
    with ExitStack() as ends:
        for play in plays.values():
            ends.callback(play.close)
        spent = _play(plays, turns)
        host = max(plays["parking"].figures.kept // _PART, 1)
        memory = MemoryBudget(tight + 1, host, "park", disk=ample)
        path = None
        if name == "memory":
            path = ends.enter_context(TemporaryDirectory(prefix="blockyard-proof-"))
        for third in ("three tiers",) if path is None else ("disk", "restarted"):
            play = Play(seeded, memory, model, block_size=_SIZE, on=on, disk_path=path)
            ends.callback(play.close)
            plays[third] = play
            spent |= _play({third: play}, turns)
            # What it has is in the table still, and the next one owns the folder.
            play.close()
        broken = _told(_rows(plays, spent), turns)
    if broken:
        raise Broken("; ".join(broken))


def _play(plays: dict[str, Play], turns: int) -> dict[str, float]:
    """Plays all of them in turns; returns the CPU time that each took."""
    spent = dict.fromkeys(plays, 0.0)
    shown = 0.0
    with ProgressLine(turns) as watch:
        while not all(play.over for play in plays.values()):
            for name, play in plays.items():
                if not play.over:
                    begun = time.process_time()
                    play.step()
                    spent[name] += time.process_time() - begun
            if time.monotonic() - shown > 0.1:  # noqa: PLR2004 - seconds between two looks
                shown = time.monotonic()
                watch.show(_rows(plays, spent))
    for play in plays.values():
        play.settle()
    return spent


def _told(rows: list[Row], turns: int) -> list[str]:
    """Prints the results; returns what is broken: tokens that differ, and laws."""
    click.echo(table(rows, turns))
    audits = {row.name: row.play.cache.audit() for row in rows}
    return [
        *(f"{row.name}: its tokens differ" for row in rows if not row.same),
        *(f"{name}: {found.law}: {found.detail}" for name, found in audits.items() if found),
    ]


def _rows(plays: dict[str, Play], spent: dict[str, float]) -> list[Row]:
    ample = next(iter(plays.values()))

    def same(play: Play) -> bool | None:
        if not (ample.over and play.over):
            return None
        return play.tokens == ample.tokens

    return [Row(name, play, spent[name], same(play)) for name, play in plays.items()]
