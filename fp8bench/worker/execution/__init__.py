"""How a training step is executed: what wraps the model, how ranks are joined, how a step is launched.

    build.py      matches the request with what is possible, in which order: gives a model that is ready to train
    parallel/     how ranks are joined, one file per way
    checkpointing.py, optimizers.py, blocks.py: activations that are recomputed; optimizers; a model's layers
    step.py       the step itself, its launch from Python, and everything that it changes
    replay.py     the step captured once as a CUDA graph, and replayed
    reference.py  the same steps written out once more, plainly, with nothing of the above
    proof.py      compares steps executed as timed with those
    applied.py    what the optimizer does by itself
    afterwards.py one more step after the timed ones, and the samples that were counted
    decide.py     the order of these: prove, capture, or fall back with the reason

Another way to wrap is a line in `build`, another way to join ranks a file in `parallel`, another way to launch a new
file here and a line in `decide`; the loop that is timed (`worker.timing`) depends on none of them.
"""
