"""How ranks are joined to train one model, one file per way, each a `strategy.Strategy`; `choose` decides which."""
