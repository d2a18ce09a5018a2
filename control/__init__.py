"""Signalbox's control plane: reads fleet.yaml, renders and runs the edge, starts engines, shows them."""

__version__ = "0.1.0"
