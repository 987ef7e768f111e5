"""Engines that speak the protocol of `scheduling.engine`. A new one is one new file here."""
