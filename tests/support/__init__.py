"""The harness that the suites share: engines, edges, raw clients."""
