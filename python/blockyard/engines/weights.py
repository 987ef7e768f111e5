"""`blockyard.reference.weights`."""

from blockyard.reference.weights import *
