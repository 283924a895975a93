"""What is trained: a model, its data, its loss, and how much work a step of it is."""
