"""What a trace can be made from: one file for each format, and a line in `registry.py`."""
