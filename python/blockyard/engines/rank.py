"""`blockyard.reference.rank`."""

from blockyard.reference.rank import *
