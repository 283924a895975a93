"""How a training step is executed: what wraps the model, how ranks are joined, how a step is launched.

    build.py      what was requested against what is possible; torch.compile, DDP, optimizer: a model ready to train
    step.py       the step itself, its launch from Python, and everything that it changes
    replay.py     the step captured once as a CUDA graph, and replayed
    proof.py      steps executed as timed against the same steps plainly eager
    decide.py     the order of it: prove, capture, or fall back with the reason

Another way to wrap or join is a line in `build`, another way to launch a new file here and a line in `decide`; the loop
that is timed (`worker.timing`) knows of none of them.
"""
