"""`blockyard.connectors.sglang`."""

from blockyard.connectors.sglang import *
