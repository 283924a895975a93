"""`check`: has anything become slower than is allowed, against a reference?"""
