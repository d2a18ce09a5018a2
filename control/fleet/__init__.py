"""What the user wrote: fleet.yaml, checked."""
