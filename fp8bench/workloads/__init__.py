"""What is trained: a model, its data, its loss, and the amount of work in a step."""
