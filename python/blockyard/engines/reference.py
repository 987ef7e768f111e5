"""`blockyard.reference.reference`."""

from blockyard.reference.reference import *
