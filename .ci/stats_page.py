"""Writes docs/stats.md from the schema of `stats()`; with --check, says whether that was done."""

import sys
from pathlib import Path

from blockyard.crane.crane import Crane
from blockyard.crane.tiers.disk import DiskTier
from blockyard.publishing.publisher import Publisher
from blockyard.scheduling.reservations import Reservations
from blockyard.scheduling.scheduler import Scheduler
from blockyard.shared.stats import core_schema, page
from blockyard.yard.flights import Flights
from blockyard.yard.recording import Recording

PAGE = Path(__file__).parents[1] / "docs" / "stats.md"
PARTS = {
    "The yard": core_schema(),
    "What is in flight": Flights.SCHEMA,
    "A recording": Recording.SCHEMA,
    "A crane": Crane.SCHEMA,
    "A crane's disk": DiskTier.SCHEMA,
    "The scheduler": Scheduler.SCHEMA,
    "Reservations for others": Reservations.SCHEMA,
    "Events for routers": Publisher.SCHEMA,
}


def main() -> int:
    """Writes or checks."""
    text = page("What `stats()` says", PARTS)
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE.name} is not what the schema says: make docs")
    return 1


if __name__ == "__main__":
    sys.exit(main())
