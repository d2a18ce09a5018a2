"""Clients' API keys: keys.yaml, which has hashes only, and the commands that change it."""
