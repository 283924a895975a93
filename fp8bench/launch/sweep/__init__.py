"""The search for a machine's cheapest configuration: which configurations there are (`space`), in which order they are
looked at (`looks`), which go on (`halving`), how long a turn is expected to take (`expected`), which turn is next
within a budget (`budget`, `spending`), what is left out (`untried`), the search itself (`search`), and a forecast of it
(`outlook`). All are pure except the last two, which read and write records.
"""
