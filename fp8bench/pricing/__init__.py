"""Instances, their dated prices, and what a throughput costs. No torch, no records."""
