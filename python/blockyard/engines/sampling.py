"""`blockyard.reference.sampling`."""

from blockyard.reference.sampling import *
