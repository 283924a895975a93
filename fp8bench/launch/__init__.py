"""Turns a request into records: decides what runs, in which order and in which processes."""
