"""Keeps records: one folder per instance, one JSON file per record, never overwritten; and selects among them."""
