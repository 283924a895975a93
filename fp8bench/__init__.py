"""fp8bench: which precision mode, on which GPU instance, trains a model for the least money, and how sure we are."""

__version__ = "0.1.0"
