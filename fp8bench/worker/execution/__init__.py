"""How a training step is executed (`build`, `step`, `parallel`), and the proof of it (`reference`, `proof`, `decide`,
`afterwards`). The timed loop (`worker.timing`) depends on none of them.
"""
