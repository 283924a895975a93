"""How a training step is executed: what wraps the model, how ranks are joined, how a step is launched.

    build.py      what was requested against what is possible, and in which order: a model ready to train
    parallel/     how ranks are joined, a file a way
    checkpointing.py, optimizers.py, blocks.py: activations that are computed again; optimizers; a model's layers
    step.py       the step itself, its launch from Python, and everything that it changes
    replay.py     the step captured once as a CUDA graph, and replayed
    proof.py      steps executed as timed against the same steps plainly eager
    reference.py  what those are run on, where weights are sharded
    decide.py     the order of it: prove, capture, or fall back with the reason

Another way to wrap is a line in `build`, another way to join ranks a file in `parallel`, another way to launch a new
file here and a line in `decide`; the loop that is timed (`worker.timing`) knows of none of them.
"""
