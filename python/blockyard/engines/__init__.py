"""Engines that speak the protocol of `blockyard.engine`. A new one is one new file here."""
