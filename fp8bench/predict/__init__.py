"""What a step would take, and what a dollar would buy, on an instance that nobody here has measured."""
