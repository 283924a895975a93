"""From records and prices to what a user reads: numbers first (compare), looks after (tables)."""
