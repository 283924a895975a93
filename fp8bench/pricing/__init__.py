"""Instances, their dated prices, and the cost of a throughput. No torch, no records."""
