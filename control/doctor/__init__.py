"""``signalbox doctor``: looks at this machine, and says for each finding what to do. It changes nothing."""
