"""The kinds of things that are measured: one folder each, and one line each in `registry`."""
