"""One rank's work: prove the mode, train, time, and report. All code here runs inside a worker process."""
