"""How a training step is executed, and the proof of it.

`build` wraps and joins a model (`parallel`: one file per way to join ranks), `step` is the step, `replay` its CUDA
graph, `reference` the same steps written out plainly, `decide` the order: prove, capture, or fall back with the reason.
The timed loop (`worker.timing`) depends on none of them.
"""
