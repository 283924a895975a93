"""The search for a machine's cheapest configuration: what there is and what is looked at or measured next (`halving`),
and the search itself (`search`), which alone reads and writes records.
"""
