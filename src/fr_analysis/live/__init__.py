"""``live``: from a running job's debug server to an answer, and from answers to progress."""
