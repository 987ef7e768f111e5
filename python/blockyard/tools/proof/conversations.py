"""Seeded conversations: some share a beginning, and a turn continues from the answer before it."""

import random
from dataclasses import dataclass
from typing import Self

from blockyard.shared.validate import integer

__all__ = ["Conversation", "Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt, and the length of its answer."""

    said: tuple[int, ...]
    """The tokens added to all that was said and answered before."""
    max_tokens: int
    """The length of the answer in tokens."""
    after: int = 0
    """Steps between the answer before and this turn."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation: a turn begins after the answer to the one before."""

    name: str
    begins: int
    """The step at which its first turn begins."""
    turns: tuple[Turn, ...]
    priority: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of the whole conversation."""
        return sum(len(turn.said) + turn.max_tokens for turn in self.turns)

    @classmethod
    def seeded(
        cls, seed: int, count: int, *, vocabulary: int = 512, longest: int = 240
    ) -> list[Self]:
        """Returns conversations, the same ones for the same arguments.

        A third share a beginning with others, most have a second turn, and most begin early.

        Args:
            seed: Any number.
            count: How many.
            vocabulary: Token ids, from 0.
            longest: The most tokens of a whole conversation, 64 or more.

        Raises:
            Misuse: A value is out of range.
        """
        count = integer("count", count)
        longest = integer("longest", longest, least=64)
        chance = random.Random(seed)  # noqa: S311 - not for cryptography

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
