"""Render beside what runs, promote, make the edge confirm, put the last good files back when it does not."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

from control.edge import changes, files, keys
from control.edge.admin import AdminClient, read_token
from control.edge.changes import Changes
from control.edge.files import Applied
from control.edge.logs import ErrorLog
from control.edge.ports import require_free, require_movable
from control.edge.process import CONF, NEXT_CONF, EdgeProcess, Ending
from control.edge.render import Rendered
from control.edge.site import Site, client, locked
from control.edge.snapshot import encode
from control.errors import EdgeError, SignalboxError
from control.keys.entries import Entries
from control.paths import StatePaths

#: Seconds for the workers of a new generation to answer. nginx itself tries for 2.5 s to get a port.
CONFIRM_TIMEOUT = 15.0
#: Seconds that workers whose master was killed get for their streams when a new edge is to take their place.
ORPHANS_DRAIN = 5.0
#: Seconds that a failure seen in error.log may be followed by an answer all the same.
GRACE = 0.3
#: What new workers may say of themselves; other lines at that moment are about traffic.
_COMPLAINT = re.compile(r"init_worker_by_lua|\[(crit|alert|emerg)\]")


@dataclass(frozen=True)
class Result:
    """What a render, start or reload did. ``version`` is that of fleet.json."""

    action: Literal["rendered", "nothing", "pushed", "reloaded", "started"]
    changes: Changes
    generation: int
    version: int
    warnings: tuple[str, ...] = ()
    pid: int | None = None
    keys: tuple[str, ...] = ()  # what became of API keys, which no failure of the rest undoes

    def lines(self) -> list[str]:
        """What changed and what happened, for a person."""
        happened = {
            "rendered": self._rendered(),
            "nothing": ""
            if self.keys
            else f"Nothing changed; the edge goes on with generation {self.generation}, fleet {self.version}.",
            "pushed": f"The edge took fleet {self.version} without a reload.",
            "reloaded": f"Reloaded: all workers are of generation {self.generation}, fleet {self.version}.",
            "started": f"The edge runs (pid {self.pid}, generation {self.generation}, fleet {self.version}).",
        }[self.action]
        changed = [] if self.action == "started" else self.changes.lines()
        warnings = [f"warning: {line}" for line in self.warnings]
        return [*changed, *self.keys, *warnings, *filter(None, [happened])]

    def _rendered(self) -> str:
        if self.changes.first:
            return "Rendered. Nothing was applied before: `signalbox start` starts the edge with it."
        return "Rendered. `signalbox reload` applies it." if self.changes or self.keys else "Rendered. Nothing changes."


@dataclass(frozen=True)
class _Plan:
    """One rendering, ready to be promoted: the text of both files, and what applying them changes."""

    rendered: Rendered
    fleet_json: str
    version: int
    changes: Changes
    hashes: dict[str, str]
    keys: Entries | None


def render_next(site: Site) -> Result:
    """Render into edge/next/ and say how it differs from what runs. Changes nothing that runs."""
    with locked(site.paths):
        plan = _plan(site)
    pending = keys.pending(site.paths, plan.keys)
    return Result("rendered", plan.changes, files.generation(site.paths), plan.version, keys=pending)


def start(site: Site) -> Result:
    """Render, test, start, and wait until the edge answers with its generation.

    Raises EdgeError, with the end of error.log, when any of it fails; then nothing runs and conf/ is as it was.
    """
    with locked(site.paths):
        pid = site.process.pid()
        if pid is not None:
            raise EdgeError(f"the edge is already running (pid {pid})", "`signalbox reload` applies changes.")
        plan = _plan(site)
        warnings = site.process.test(NEXT_CONF)
        if site.process.stop(drain=ORPHANS_DRAIN) != "was not running":
            warnings.append("the master process of the edge had been killed; the workers that it left were ended")
        require_free((*plan.rendered.listen, plan.rendered.admin))
        saved = files.backup(site.paths)
        generation = files.generation(site.paths) + 1
        files.keep_last(site.paths, files.good(site.paths, Applied.read(site.paths)))
        try:
            _promote(site, plan, generation)
            keys.write(site.paths, plan.keys)
            pid = launch(site, plan.rendered.admin, generation)
            _record(site, plan, generation)
        except BaseException:
            site.process.stop(quit=False)
            files.restore(site.paths, saved)
            raise
        warnings += [
            f"${name} is not set, so the edge has no key for the engines that want it"
            for name in plan.rendered.key_envs
            if not os.environ.get(name)
        ]
        return Result("started", plan.changes, generation, plan.version, tuple(warnings), pid)


def launch(site: Site, admin: str, generation: int) -> int:
    """Start nginx on conf/ and wait for ``generation``; on any failure, Ctrl-C included, nothing is left running."""
    log = ErrorLog(site.paths.edge_logs / "error.log")
    edge = AdminClient(admin, read_token(site.paths.admin_token))
    try:
        pid = site.process.start()
        problem = _await(site.process, edge, generation, log)
        if problem is not None:
            raise EdgeError(f"the edge started but does not serve: {problem}", f"The whole log: {log.path}")
        return pid
    except BaseException:
        site.process.stop(quit=False)
        raise
    finally:
        edge.close()


def stop(paths: StatePaths, quit: bool = True, drain: float = 30.0) -> Ending:
    """Stop the edge of this state folder (see ``EdgeProcess.stop``) when no start or reload is at work."""
    process = EdgeProcess(paths)
    if process.pid() is None and not process.orphans():
        return "was not running"
    with locked(paths):
        return process.stop(quit, drain)


def reload(site: Site) -> Result:
    """Render and promote: PUT /fleet when only the fleet changed, else HUP and wait for the new generation.

    Raises EdgeError (RenderError, FleetError) when any step fails; then the edge serves as before and conf/ holds the
    last good files.
    """
    with locked(site.paths):
        if site.process.pid() is None:
            raise EdgeError("the edge is not running", "Start it with `signalbox start`.")
        edge = client(site.paths)
        try:
            result = _reload(site, edge)
        except SignalboxError as error:
            with contextlib.suppress(EdgeError):  # a full disk may be the very reason
                files.write(site.paths.reload_refused, error.message + "\n")
            raise
        finally:
            edge.close()
        site.paths.reload_refused.unlink(missing_ok=True)
        return result


def _reload(site: Site, edge: AdminClient) -> Result:
    plan = _plan(site)
    state = edge.state()
    current = files.generation(site.paths)
    # First: clients with a new key come in before anything else can fail, and those without one stay out.
    words = tuple(keys.tell(site.paths, plan.keys, edge, state).lines())
    told = int(state.get("fleet_version", 0))
    if told > plan.version or (told == plan.version and plan.changes.fleet):
        plan = _with_version(site, plan, told + 1)  # somebody else told the edge meanwhile: ours must count as newer
    behind = told != plan.version
    if not plan.changes and not behind:
        return Result("nothing", plan.changes, current, plan.version, keys=words)
    warnings = site.process.test(NEXT_CONF)
    applied = Applied.read(site.paths)
    saved = files.good(site.paths, applied, str(state.get("generation")))
    files.keep_last(site.paths, saved)
    if not plan.changes.static:
        _push(site, edge, plan, saved, current)
        return Result("pushed", plan.changes, current, plan.version, tuple(warnings), keys=words)
    old = [*applied.listen, applied.admin] if applied else []
    new = sorted({*plan.rendered.listen, plan.rendered.admin} - set(old))
    require_movable(old, new, "edge.admin" if new == [plan.rendered.admin] else "edge.listen")
    require_free(new)
    generation = max(current, int(str(state.get("generation") or 0))) + 1
    found = _hup(site, edge, plan, saved, generation)
    return Result("reloaded", plan.changes, generation, plan.version, (*warnings, *found), keys=words)


def _push(site: Site, edge: AdminClient, plan: _Plan, saved: dict[str, str | None], generation: int) -> None:
    try:
        _promote(site, plan, generation)
        edge.put_fleet(plan.fleet_json)
    except EdgeError as error:
        files.restore(site.paths, saved)
        raise EdgeError(
            f"{error.message}\nThe last good files are back; the edge serves as before.", error.hint
        ) from error
    _record(site, plan, generation)


def _hup(site: Site, old: AdminClient, plan: _Plan, saved: dict[str, str | None], generation: int) -> list[str]:
    """Promote and HUP; returns what the new workers complained about. Puts everything back when they do not come."""
    log = ErrorLog(site.paths.edge_logs / "error.log")
    new = client(site.paths, plan.rendered.admin)
    try:
        _promote(site, plan, generation)
        site.process.reload_signal()
        problem = _await(site.process, new, generation, log)
        if problem is None:
            _record(site, plan, generation)
    except BaseException:
        _put_back(site, old, saved, generation)
        raise
    finally:
        new.close()
    if problem is None:
        complaints = [line for line in log.severe() if _COMPLAINT.search(line)]
        return [*_cautions(plan.changes), *complaints[:10]]
    note = _put_back(site, old, saved, generation)
    raise EdgeError(f"the reload was refused: {problem}\n{note}", "Correct it, then reload again.")


def _cautions(found: Changes) -> list[str]:
    """What a reload does, or cannot do, that a person should know."""
    lines = []
    added = [line[len("+env ") :].rstrip(";") for line in found.diff if line.startswith("+env ")]
    if added:
        lines.append(f"variables are read when the edge starts: if {', '.join(added)} was not set then, restart it")
    if any("lua_shared_dict" in line for line in found.diff):
        lines.append("a shared dictionary changed: new workers begin with an empty one")
    return lines


def _put_back(site: Site, old: AdminClient, saved: dict[str, str | None], failed: int) -> str:
    """Restore conf/; when workers of the failed generation came up all the same, HUP once more to the good files."""
    files.restore(site.paths, saved)
    try:
        state = old.state()
        if not any(str(worker["generation"]) == str(failed) for worker in state["workers"]):
            _retell(site, old, state)
            return "The last good files are back; the edge serves as before."
    except EdgeError:
        pass  # the old address is gone, so the new configuration has come up at least in part
    log = ErrorLog(site.paths.edge_logs / "error.log")
    files.write(site.paths.conf / "generation", f"{failed + 1}\n")
    site.process.reload_signal()
    problem = _await(site.process, old, failed + 1, log)
    if problem is not None:
        return f"The last good files are back, but the edge did not confirm them: {problem}"
    _retell(site, old, old.state())
    return f"The last good files are back; the edge serves them as generation {failed + 1}."


def _retell(site: Site, edge: AdminClient, state: dict[str, Any]) -> None:
    """A reload that failed late may have left its fleet in the shared dictionary: tell the edge the good one again."""
    good = files.read_snapshot(site.paths.conf / "fleet.json")
    told = int(state.get("fleet_version", 0))
    if good is None or told <= int(good["version"]):
        return
    text = encode({**good, "version": told + 1})
    edge.put_fleet(text)
    files.write(site.paths.conf / "fleet.json", text)


def _await(process: EdgeProcess, edge: AdminClient, generation: int, log: ErrorLog) -> str | None:
    """Wait until ``generation`` answers and every worker that stays has it; None, or why it did not come."""
    deadline = time.monotonic() + CONFIRM_TIMEOUT
    failed_at: float | None = None
    last = "no answer"
    while time.monotonic() < deadline:
        try:
            state = edge.state()
            born = {int(worker["pid"]): str(worker["generation"]) for worker in state["workers"]}
            if str(state["generation"]) == str(generation):
                # nginx's own list: a worker may not have registered yet, or not know yet that it is to go.
                workers = process.workers()
                if workers and all(born.get(pid) == str(generation) for pid in workers):
                    return None
                last = "not all workers are of the new generation"
            else:
                last = f"workers still report generation {state['generation']}"
        except EdgeError as error:  # a refusal too: an old worker may have answered
            last = error.message
        if failed_at is None and log.fatal():
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE:
            break
        time.sleep(0.02)
    said = "\n".join(log.severe()[:12])
    return said or f"{last} after {CONFIRM_TIMEOUT:.0f} s"


def _plan(site: Site) -> _Plan:
    """Render, write next/, compare with conf/ and with what nginx last loaded."""
    site.process.prepare()
    told = site.keys()
    rendered = site.render()
    hashes = files.hashes(rendered.nginx_conf, site.sources.lua, rendered.read_files)
    applied = Applied.read(site.paths)
    old = files.read_snapshot(site.paths.conf / "fleet.json")
    old_conf = files.read(site.paths.conf / "nginx.conf") or ""
    other = changes.changed_files(applied.hashes if applied else {}, hashes)
    found = changes.compare(old_conf, rendered.nginx_conf, old, rendered.snapshot, other)
    if found.diff:  # its lines say more than its name
        found = replace(found, files=tuple(name for name in other if name != "nginx.conf"))
    version = (int(old["version"]) if old else 0) + (1 if found.fleet else 0)
    version = max(version, int(rendered.snapshot["version"]))  # a fleet that was taken from others keeps its own
    plan = _Plan(rendered, "", version, found, hashes, told)
    files.write(site.paths.next / "nginx.conf", rendered.nginx_conf)
    return _with_version(site, plan, version)


def _with_version(site: Site, plan: _Plan, version: int) -> _Plan:
    """The plan with ``version`` in its fleet.json, which is written to next/."""
    text = encode({**plan.rendered.snapshot, "version": version})
    files.write(site.paths.next / "fleet.json", text)
    return replace(plan, version=version, fleet_json=text)


def _promote(site: Site, plan: _Plan, generation: int) -> None:
    """Move the plan's files to conf/, each atomically; nginx reads them only when it is told to.

    The generation comes first: cut short, conf/ has one that nobody runs, so nobody takes its files for confirmed.
    """
    conf = site.paths.conf
    files.write_all(
        {
            conf / "generation": f"{generation}\n",
            conf / "fleet.json": plan.fleet_json,
            site.paths.edge / CONF: plan.rendered.nginx_conf,
        }
    )


def _record(site: Site, plan: _Plan, generation: int) -> None:
    Applied(
        admin=plan.rendered.admin, listen=list(plan.rendered.listen), generation=generation, hashes=plan.hashes
    ).write(site.paths)
