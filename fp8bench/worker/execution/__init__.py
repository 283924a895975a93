"""How a training step is executed, and the proof of it. The timed loop (`worker.timing`) depends on neither."""
