"""One rank's work: prove the mode, train, time, and report. Everything here runs inside a worker process."""
