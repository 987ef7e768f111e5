"""`blockyard sweep`: what a trace finds in caches of many sizes, and which of them to buy."""
