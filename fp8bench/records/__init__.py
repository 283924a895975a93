"""What is kept: one folder an instance, one JSON file a record, never overwritten; and which records are chosen."""
