"""`blockyard.reference.exact_matmul`."""

from blockyard.reference.exact_matmul import *
