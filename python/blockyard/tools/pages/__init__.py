"""Pages that need no network: one HTML file with its data, its style and what draws its charts."""
