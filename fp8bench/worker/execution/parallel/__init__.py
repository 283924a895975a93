"""How ranks are joined to train one model, one file per way, each a `strategy.Strategy`.

    strategy.py   the interface of a way to join ranks, and where a rank stands among the others
    choose.py     which way: as requested, or by what fits in memory
    ddp.py        every rank holds the complete model; gradients are averaged
    fsdp.py       every rank holds a part of every weight, and gathers a block's weights while it runs (FSDP2)
    tensor.py     ranks of one host share every layer of a block, with plans in plans.py; alone, or below FSDP2
    shards.py     parts of weights: what a rank holds of a tensor, and the tensor that the ranks hold together

`build` calls them in this order: `divide` (tensor parallel) -> activation checkpointing -> torch.compile -> `join`. The
loop that is timed depends on none of them, and a step only on when gradients are shared (`sharing`).
"""
