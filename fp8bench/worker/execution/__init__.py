"""How a training step is executed: what wraps the model, how ranks are joined, how a step is launched.

    wrap.py       torch.compile of the whole model, of each block, or of nothing
    join.py       how ranks share their gradients: DistributedDataParallel
    optimizers.py the optimizers, and what the fingerprint calls them
    step.py       the step itself, and its launch from Python
    replay.py     the step captured once as a CUDA graph, and replayed
    choice.py     what was asked for against what the mode and the device can do
    build.py      the three put together
    state.py      everything that a step changes, kept and put back
    proof.py      steps executed as timed against the same steps plainly eager
    settle.py     the order of it: prove, capture, or fall back with the reason

Another way to wrap, join or launch is a new file here and a line in `build` or `settle`; the loop that is timed
(`worker.loop`) knows of none of them.
"""
