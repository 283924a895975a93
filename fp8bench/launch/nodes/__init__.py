"""Runs on several nodes under torchrun, with all modes and rounds in one call: the agent of node 0 decides what runs,
gathers the reports, keeps the records and prints.
"""
