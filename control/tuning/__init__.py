"""What the settings of an engine will do, before it is started (docs/tuning.md)."""
