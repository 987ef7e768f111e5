"""Traces of requests: reading, generation, and future uses."""

from blockyard.shared.extras import require

require("blockyard.tools.traces", "replay", "msgspec")
