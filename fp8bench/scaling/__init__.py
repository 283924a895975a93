"""How throughput and its cost change with the number of nodes: measured, published and, separately, projected."""
