"""`blockyard store`: stores that engines share, as they are asked, listed and emptied."""
