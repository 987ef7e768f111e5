"""Seeds of vLLM's real scheduler with several groups of layers, as of `seeds`."""

from collections import Counter
from typing import Any

from blockyard._typing import override
from seeds import Ask, Game, engine_of
from simulated_model import SIZE, Engine, Wrong
from simulated_setup import FULL, Kind

WINDOW, WIDE, CHUNK, STATE = (
    Kind("window", 40),
    Kind("window", 96),
    Kind("chunk", 64),
    Kind("state"),
)
MIXES = {
    "window and full": (WINDOW, FULL),
    "full and chunk": (FULL, CHUNK),
    "full and two windows": (WINDOW, FULL, WIDE),
    "two full and a window": (FULL, FULL, Kind("window", 32)),
    "Gemma": (*[WINDOW] * 5, FULL),
    "states": (STATE, STATE, FULL),
    "states and a window": (STATE, FULL, WIDE),
}


class Hybrid(Game):
    """A seed with a mix of two to six groups."""

    @override
    def make(self, seed: int) -> Engine:
        chance = self.chance
        # What a prefiller has of a prompt ends at no boundary, where states are.
        self.mix = chance.choice(
            [mix for mix, kinds in MIXES.items() if not self.beside or STATE not in kinds]
        )
        self.kinds = MIXES[self.mix]
        blocks = len(self.kinds) * chance.randint(12, 22)
        more: dict[str, Any] = {"blocks": blocks, "kinds": self.kinds, "parallel": "tensor"}
        more["beside"] = self.beside
        self.is_strict = seed % 4 == 0 and not self.beside
        if self.is_strict:
            self.faults = self.resets = False
            # What the second runner has zeroed before the copies of a step is lost.
            more |= {"host": 300, "zeroes": chance.choice([None, 1])}
        if self.is_strict or STATE in self.kinds:
            more["drafts"] = None
        return engine_of(seed, chance, faults=self.faults, **more)

    @override
    def ask(self) -> Ask:
        ask = super().ask()
        return ask._replace(own=None) if self.is_strict else ask

    @override
    def room(self) -> int:
        return super().room() // len(self.kinds)

    @override
    def flip(self) -> None:
        if not self.is_strict:
            super().flip()

    @override
    def play(self) -> Counter[str]:
        super().play()
        self.seen[f"of {self.mix}"] += 1
        if self.is_strict:
            self.seen["seeds in which nothing may be computed again"] += 1
            most = SIZE if "state" in self.mix else 0
            again = [one for one in self.engine.lost if one[1] > most]
            if again:
                raise Wrong(f"computed again where the host has room: {again}")
        return self.seen
