"""The search for a machine's cheapest configuration: which configurations there are (`space`), which of them are looked
at and which go on (`halving`), what a call spends its budget on (`budget`), and the search itself (`search`). All are
pure except the last, which reads and writes records.
"""
