"""How ranks are joined to train one model, one file per way, each a `strategy.Strategy`; `choose` decides which.

`build` calls them in this order: `divide` (tensor parallel) -> activation checkpointing -> torch.compile -> `join`.
"""
