"""Runs on several nodes under torchrun, with all modes and rounds in one call.

The process of local rank 0 becomes its node's agent, which starts the ranks of one run after the other, as a run on one
machine does; the other local ranks wait for it (`place`). The agent of node 0 leads: it decides what runs, gathers
the reports, keeps the records and prints. Agents talk through torchrun's TCPStore (`store`).
"""
