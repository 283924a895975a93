"""How throughput and its cost go with the number of nodes: measured, published, and apart from both projected."""
