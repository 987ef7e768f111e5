"""Layouts, plans and statistics, which yard and crane both use; it uses neither of them."""
