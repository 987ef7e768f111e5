"""Traces of requests: read, generated, and what they tell of their own future."""
