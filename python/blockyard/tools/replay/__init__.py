"""`blockyard replay`: runs traces of real or generated traffic through a cache in virtual time."""
