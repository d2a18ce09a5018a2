"""The suites and what they share."""
