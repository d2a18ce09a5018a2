"""What several machines share through Redis: the fleet and its keys, from one control plane to edges elsewhere."""
