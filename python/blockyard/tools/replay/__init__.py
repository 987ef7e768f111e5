"""`blockyard replay`: traces of real or generated traffic, run through a cache in virtual time."""
