"""From records and prices to what a user reads: numbers, then a document of them (`document`), then text (`render`)."""
