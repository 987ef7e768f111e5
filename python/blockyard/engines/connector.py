"""`blockyard.connectors.connector`."""

from blockyard.connectors.connector import *
