"""The search for a machine's cheapest configuration: which configurations there are (`space`), which of them are looked
at and which go on (`halving`), what a call spends its budget on (`budget`), the search itself, and a forecast of it
(`search`). All are pure except the last, which reads and writes records.
"""
