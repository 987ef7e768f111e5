"""Traces of requests: read, generated, and what they tell of their own future."""

from blockyard.shared.extras import require

require("blockyard.tools.traces", "replay", "msgspec")
