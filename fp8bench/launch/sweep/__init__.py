"""The search for the cheapest configuration of a machine: which there are (`space`), which is run next (`halving`),
what may be spent on it (`budget`), and the search itself (`search`). All but the last are pure.
"""
