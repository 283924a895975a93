"""From a request to records: what runs, in which order, in which processes."""
