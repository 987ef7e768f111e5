"""`blockyard.reference.model`."""

from blockyard.reference.model import *
