"""What both halves know: layouts, plans, statistics; it knows neither of them."""
