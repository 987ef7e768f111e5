"""`blockyard.reference.parallel`."""

from blockyard.reference.parallel import *
