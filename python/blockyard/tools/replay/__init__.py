"""`blockyard replay`: runs traces of real or generated traffic through a cache in virtual time."""

from blockyard.shared.extras import require

require("blockyard.tools.replay", "replay", "msgspec", "rich")
