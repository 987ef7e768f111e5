"""`blockyard disk`: folders of blocks as they are seen, checked and removed without owning them."""
