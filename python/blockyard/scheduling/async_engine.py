"""`blockyard.serving.async_engine`."""

from blockyard.serving.async_engine import *
