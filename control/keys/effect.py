"""What a change of keys.yaml does: told to the running edge and published, or which line of fleet.yaml is missing."""

from __future__ import annotations

from control.edge.keys import tell_running
from control.edge.site import state_paths
from control.fleet.load import LoadedFleet
from control.keys import store
from control.keys.load import LoadedKeys, keys_file
from control.sharing.publish import publish


def effect(loaded: LoadedFleet, found: LoadedKeys) -> str:
    """When the change counts: at once at a running edge that asks for keys; else what to do for it."""
    paths = state_paths(loaded)
    return advice(loaded) or "\n".join([tell_running(paths, found), *publish(loaded, paths, keys_only=True)])


def advice(loaded: LoadedFleet) -> str:
    """Which line fleet.yaml lacks; empty when it asks for keys."""
    if keys_file(loaded) is not None:
        return ""
    line = f"keys: {store.DEFAULT_NAME}"
    if loaded.fleet.edge.keys is None:
        where = f"Add the line '{line}' below 'edge:' in {loaded.path}"
    else:
        where = f"Write '{line}' in place of 'keys: none' ({loaded.path}:{loaded.line('edge', 'keys')})"
    return f"The fleet does not ask for keys. {where}, then run `signalbox reload`."
