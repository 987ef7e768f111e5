"""Engines with the protocol of `scheduling.engine`. A new engine is one new file here."""
