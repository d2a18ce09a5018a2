"""Writes flags.json anew, out of released packages. Nothing of vLLM is imported or run: its source is read."""
