"""Seeded conversations: some share a beginning, and turns go on from the answer before."""

import random
from dataclasses import dataclass
from typing import Self

from blockyard.shared.layout import natural

__all__ = ["Conversation", "Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What is said next, and how much is answered."""

    said: tuple[int, ...]
    """Tokens, behind all that was said and answered before."""
    max_tokens: int
    """Tokens of the answer."""
    after: int = 0
    """Steps that pass before it is said."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation: a turn begins when the one before was answered."""

    name: str
    begins: int
    """The step at which its first turn comes."""
    turns: tuple[Turn, ...]
    priority: int = 0

    @property
    def tokens(self) -> int:
        """Tokens at its end."""
        return sum(len(turn.said) + turn.max_tokens for turn in self.turns)

    @classmethod
    def seeded(
        cls, seed: int, count: int, *, vocabulary: int = 512, longest: int = 240
    ) -> list[Self]:
        """So many of them, the same for the same arguments.

        A third share a beginning with others, most have a second turn, and most come at once.

        Args:
            seed: Any number.
            count: How many.
            vocabulary: Token ids, from 0.
            longest: Most tokens at the end of one, 64 or more.

        Raises:
            Misuse: A value is out of range.
        """
        natural("count", count)
        natural("longest", longest, least=64)
        chance = random.Random(seed)  # noqa: S311 - it need not be hard to guess

        def words(number: int) -> tuple[int, ...]:
            return tuple(chance.randrange(vocabulary) for _ in range(number))

        systems = [words(chance.randint(16, longest // 5)) for _ in range(2)]
        conversations = []
        for number in range(count):
            turns = chance.choice([1, 2, 2])
            room = longest // turns
            opening = systems[number % 2] if chance.random() < 1 / 3 else ()
            made = []
            for turn in range(turns):
                said = (opening if turn == 0 else ()) + words(chance.randint(4, room // 3))
                most = chance.randint(room // 4, room - room // 5 - room // 3)
                made.append(Turn(said, most, chance.randint(0, 4 * count) if turn else 0))
            conversations.append(
                cls(f"conversation {number}", chance.randint(0, 2 * count), tuple(made))
            )
        return conversations
