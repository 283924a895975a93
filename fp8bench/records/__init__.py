"""Results on disk: one folder an instance, one JSON file a record, never overwritten."""
