"""``signalbox doctor``: looks at this machine and at hosts of the fleet, says what to do, and changes nothing."""
