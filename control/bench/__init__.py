"""What the edge costs: one run that compares plain nginx, Signalbox and vllm-router on the same cores."""
