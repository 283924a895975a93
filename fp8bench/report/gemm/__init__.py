"""GEMMs, alone and side by side."""
