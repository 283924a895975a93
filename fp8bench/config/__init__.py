"""What a user may set: the options of `run`, and how flags, variables, files and defaults override one another."""
