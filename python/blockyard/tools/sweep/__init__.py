"""`blockyard sweep`: what a trace finds in caches of many sizes, and which of them to buy."""

from blockyard.shared.extras import require

require("blockyard.tools.sweep", "replay", "msgspec", "rich")
