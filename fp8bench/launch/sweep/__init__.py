"""The search for a machine's cheapest configuration: which configurations there are (`space`), which of them is looked
at or measured next (`halving`), and the search itself (`search`), which alone reads and writes records.
"""
