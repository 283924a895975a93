"""`explain`: where a step's time goes, and why one mode is not faster than another."""
