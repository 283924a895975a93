"""Results elsewhere: a mirror of them in a local folder, pulled before it is read and pushed after it is written."""
