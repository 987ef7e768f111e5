"""Names that operators' flags and older programs say; `connectors` and `reference` have them."""
