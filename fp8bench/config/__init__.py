"""What a user may set: the options of `run`, and how flags, variables, files and defaults are laid over one another."""
