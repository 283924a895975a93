"""The page about runs: `compare`'s rows, what they rest on, and what to do about it."""
