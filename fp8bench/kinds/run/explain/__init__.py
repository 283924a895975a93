"""`explain`: where a step goes, and why one mode is not faster than another."""
