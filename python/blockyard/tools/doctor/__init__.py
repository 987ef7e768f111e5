"""`blockyard doctor`: what will fail on this machine, or with these settings, before it does."""
