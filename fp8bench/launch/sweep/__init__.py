"""The search for the cheapest configuration of a machine: which there are (`space`), in which order they are looked at
(`looks`), who goes on (`halving`), what a turn is expected to take (`expected`), which is next within a budget
(`budget`, `spending`), what is left out (`untried`), the search itself (`search`), and what it would do (`outlook`).
But for the last two, which read and write records, all are pure.
"""
