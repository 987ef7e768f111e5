"""`blockyard.serving.stream`."""

from blockyard.serving.stream import *
