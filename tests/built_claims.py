"""A file with one claim, and records that it can be tested on."""

from builders import rounds

FILE = """
sources:
  article: {{title: An article, setting: Somewhere., published_on: 2023-11-15}}
variants:
  bf16: {{mode: baseline-bf16, workload: vit-huge, batch_size: 64}}
  te_fp8: {{mode: te-fp8, workload: vit-huge, batch_size: 64}}
claims:
  - id: faster
    source: article
    words: fp8 is faster
    published: 1.25
    unit: x
    test: {test}
    at_least: {at_least}
    at_most: 2
    command: fp8bench run --mode te-fp8
    why: it was another machine
"""
SPEEDUP = "speedup(instance.te_fp8, instance.bf16)"
BF16 = rounds(0.1, 0.1002, 0.0999, 0.1, mode="baseline-bf16")
FP8 = rounds(0.08, 0.0801, 0.0799, 0.08, mode="te-fp8", recipe="delayed", minutes=30)
