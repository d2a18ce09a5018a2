-- What state an engine is in, judged from what is known of it. Pure: facts and the time in, state
-- and reason out. States: starting, ready, busy, suspect, down, misconfigured. (The seventh,
-- draining, is an operator's wish and lies over these: see states.lua.)
--
-- Probes alone say little: a hung vLLM goes on answering /health with 200 and /metrics with stale
-- zeros, and a busy one answers late. So an engine is judged by progress: token counters that rise,
-- or bytes that reach our clients. Where there is none to see, a trial decides: a generation of one
-- token. Progress always clears a suspicion, and outweighs a trial that failed meanwhile.

local floor = math.floor
local huge = math.huge
local max = math.max
local min = math.min


local _M = {}

-- Windows without progress after which one is tried, and after which an engine that says that it
-- works is not believed. A tenth less than whole ones: looks and trials take time, and a hung engine
-- is to be out when two windows are over.
local TRIAL_WINDOWS, STALL_WINDOWS = 0.9, 1.9
-- Probes missed in a row until an engine is down; a late answer needs more than a refusal.
local REFUSED_MISSES, LATE_MISSES = 2, 4
-- Trials that fail in a row until an engine without token counters is suspect.
local BLIND_FAILURES = 2
-- Requests that the engine itself failed since its last sign of life, after which it is tried.
local FAULTS = 3
-- Reads of /metrics with (or without) waiting requests until an engine counts as busy (or not).
local BUSY_READS = 2

_M.ALL = { "starting", "ready", "busy", "draining", "suspect", "down", "misconfigured" }
-- States in which an engine takes requests.
_M.SERVING = { ready = true, busy = true }


-- `can_try` false: no trial can be sent to this engine.
function _M.new(now, can_try)
    return {
        answered = false,      -- has it ever?
        unreachable = false,   -- why it cannot be reached
        misses = 0,
        late = false,
        returning = false,     -- reachable again; a trial stands between it and requests
        refused = false,       -- why it refuses us: what /v1/models says ...
        trial_refused = false, -- ... and what a trial says
        unlisted = false,      -- its model list lacks our names
        accepted = false,      -- it lacks them, yet a trial went well
        hung = false,          -- why it is not believed
        total = false,         -- the sum of its token counters ...
        read_at = 0,           -- ... and when they were read
        running = false,
        queued = 0,            -- of BUSY_READS
        moved = now,           -- the last progress
        stalled_from = false,  -- since when there has been work, if there is
        faults = 0,
        can_try = can_try,
        trying = false,
        tried = false,         -- when the last trial began
        failures = 0,
    }
end


-- Takes up what another worker knew: a state as `judge` gave it.
function _M.adopt(engine, state, reason)
    engine.answered = state ~= "starting"
    if state == "down" then
        engine.unreachable = reason

    elseif state == "suspect" then
        engine.hung = reason

    elseif state == "misconfigured" then
        engine.refused = reason
    end
end


local function progress(engine, now)
    engine.moved = max(engine.moved, now)
    engine.hung = false
    engine.returning = false
    engine.failures = 0
    engine.faults = 0
end


-- /health answered below 500.
function _M.reached(engine)
    engine.misses = 0
    engine.late = false
    if engine.unreachable and engine.answered then
        engine.returning = engine.can_try
        engine.tried = false
        engine.total = false
        engine.failures = 0
    end
    engine.unreachable = false
    engine.answered = true
end


-- /health did not answer, or with 5xx. `late`: the time ran out.
function _M.missed(engine, reason, late, now, settings)
    engine.misses = engine.misses + 1
    if engine.answered and not engine.unreachable then
        engine.late = late
        if late and now - engine.moved < STALL_WINDOWS * settings.window then
            return  -- it generates: busy, not dead
        end
        if engine.misses < (late and LATE_MISSES or REFUSED_MISSES) then
            return
        end
    end
    engine.unreachable = reason
end


-- A request could not connect.
function _M.connect_failed(engine)
    if engine.answered then
        engine.unreachable = "a request could not connect"
    end
end


-- What /metrics said (see promread). Missing numbers are nil.
function _M.measured(engine, sample, now)
    local total = sample.tokens
    if total then
        if engine.total and total > engine.total then
            -- Bytes or a trial since the last read explain the rise. Dated at this moment, what was
            -- done before a hang would hide it until the next read.
            progress(engine, engine.moved > engine.read_at and engine.moved or now)
        end
        engine.total, engine.read_at = total, now
    end
    engine.running = sample.running or false
    if sample.waiting then
        local step = sample.waiting > 0 and 1 or -1
        engine.queued = min(2 * BUSY_READS - 1, max(0, engine.queued + step))
    end
end


-- /metrics could not be read: what it last said of running requests says nothing of now.
function _M.unmeasured(engine)
    engine.running = false
    engine.queued = 0
end


-- What passes through us: requests in flight, when bytes last came, faults of the engine since the
-- last call (error answers, streams that broke).
function _M.passed(engine, in_flight, heard, faults, now, settings)
    if heard > engine.moved then
        progress(engine, heard)
    end
    engine.faults = engine.faults + faults
    if in_flight == 0 and (engine.running or 0) == 0 then
        engine.stalled_from = false
        if not engine.can_try then
            engine.hung = false  -- nothing but a request can tell: let one try
        end
        return
    end
    engine.stalled_from = engine.stalled_from or now
    if not engine.hung and (engine.running or 0) > 0
        and _M.stall(engine, now) >= STALL_WINDOWS * settings.window
    then
        engine.hung = "answers probes, but has produced no token for "
            .. floor(_M.stall(engine, now) + 0.5) .. " s with requests running"
    end
end


-- For how many seconds there has been work without progress.
function _M.stall(engine, now)
    return engine.stalled_from and now - max(engine.moved, engine.stalled_from) or 0
end


-- Whether an engine is to be watched closely: it has work and has not moved for half a window.
function _M.in_doubt(engine, now, settings)
    return _M.stall(engine, now) >= settings.window / 2
end


-- What /v1/models said: the status, and for 200 whether a name that we send is among them and what
-- they are.
function _M.listed(engine, status, found, names)
    engine.refused = false
    if status == 401 or status == 403 then
        engine.refused = "refuses the key of this backend (/v1/models answered " .. status .. ")"

    elseif status == 200 then
        if found then
            engine.unlisted, engine.accepted = false, false

        elseif engine.accepted ~= names then
            engine.accepted = false
            engine.unlisted = "serves " .. (names ~= "" and names or "no model")
                .. ", not the name that this backend is asked for"
        end
        engine.names = names
    end
end


-- Is it time to ask for one token? Slowly when idle, faster when in doubt, at once when the engine
-- comes back or stops in the middle of work.
function _M.wants_trial(engine, now, settings)
    if not engine.can_try or engine.trying or not engine.answered or engine.unreachable then
        return false
    end
    local since = engine.tried and now - engine.tried or huge
    if engine.returning or engine.hung or engine.unlisted or engine.trial_refused
        or engine.failures > 0 or engine.faults >= FAULTS
        or _M.stall(engine, now) >= TRIAL_WINDOWS * settings.window
    then
        return since >= settings.suspect
    end
    return since >= settings.idle and now - engine.moved >= settings.idle
end


function _M.trial_begins(engine, now)
    engine.trying = true
    engine.tried = now
end


-- How a trial ended: its status, or nil and why there is none.
function _M.trial_ended(engine, status, reason, now, settings)
    engine.trying = false
    if status == 200 then
        engine.trial_refused, engine.refused = false, false
        if engine.unlisted then
            engine.unlisted, engine.accepted = false, engine.names
        end
        return progress(engine, now)
    end
    if status == 401 or status == 403 then
        engine.trial_refused = "refuses the key of this backend (a generation answered " .. status .. ")"
        return
    end
    if status == 429 or status == 503 or engine.moved > engine.tried then
        return  -- full, or it has generated meanwhile: no fault
    end
    if status and status < 500 then
        if not engine.unlisted then
            engine.can_try = false  -- it has no completions: /health and requests have to do
            engine.returning = false
        end
        return
    end
    engine.failures = engine.failures + 1
    engine.faults = 0
    if engine.total or engine.returning or engine.failures >= BLIND_FAILURES then
        engine.returning = false
        engine.hung = engine.hung or "answers probes, but a generation of one token "
            .. (status and "answered " .. status or "failed: " .. reason)
    end
end


function _M.judge(engine)
    if not engine.answered then
        return "starting", engine.unreachable or "not probed yet"
    end
    if engine.unreachable then
        return "down", engine.unreachable
    end
    local wrong = engine.refused or engine.trial_refused or engine.unlisted
    if wrong then
        return "misconfigured", wrong
    end
    if engine.hung then
        return "suspect", engine.hung
    end
    if engine.returning then
        return "down", "answers again; a generation of one token has to succeed first"
    end
    if engine.late then
        return "busy", "answers probes late"
    end
    if engine.queued >= BUSY_READS then
        return "busy", "requests wait inside the engine"
    end
    return "ready", ""
end


return _M
