"""`blockyard.scheduling.stats`."""

from blockyard.scheduling.stats import Monitor, Waited

__all__ = ["Monitor", "Waited"]
