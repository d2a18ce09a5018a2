"""What the edge costs: CPU, latency and memory beside other proxies (docs/performance.md)."""
