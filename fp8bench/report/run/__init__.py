"""Runs, priced and compared."""
