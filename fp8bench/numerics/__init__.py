"""What the number formats hold, what error they add, and how fast their GEMMs are."""
