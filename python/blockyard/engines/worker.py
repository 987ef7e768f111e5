"""`blockyard.connectors.worker`."""

from blockyard.connectors.worker import *
