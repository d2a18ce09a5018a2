-- Looks after the engines. One worker leads: it examines each engine (examine.lua), judges
-- (engine_state.lua) and stores what it found (states.lua); all workers read it there. Another
-- worker takes over when the leader goes.

local engine_state = require "edge.engine_state"
local examine = require "edge.examine"
local fleet = require "edge.fleet"
local leader = require "edge.leader"
local pulse = require "edge.pulse"
local resolve = require "edge.resolve"
local slots = require "edge.slots"
local states = require "edge.states"

local at = ngx.timer.at
local every = ngx.timer.every
local leads = leader.leads
local ipairs = ipairs
local log = ngx.log
local max, min = math.max, math.min
local now = ngx.now
local pairs = pairs
local spawn = ngx.thread.spawn
local wait = ngx.thread.wait
local ERR = ngx.ERR

local dict = ngx.shared.edge_state

-- How often a worker sees whether an engine's turn has come, in seconds.
local TICK = 0.25
local LOADS_INTERVAL = 1
-- Seconds that a backend stays down whose connects fail though probes pass.
local HOLD = 5
-- So many engines are asked, and so many tried, at a time.
local WAVE, MAX_TRIALS = 64, 32
-- Reading /metrics of a large fleet must not fill a core: seconds more per engine.
local METRICS_COST = 0.01


local _M = {}

-- Of the leader: what it knows of each engine, by state_key.
local engines_cache = {}
local fleet_cache
local trials_cache = 0
-- Of every worker: when it reads the engines' own numbers again, which choosing needs.
local loads_at = 0


local function engine_of(backend)
    local key = backend.state_key
    local engine = engines_cache[key]
    if not engine then
        engine = engine_state.new(dict:get("moved:" .. key) or now(), not examine.is_blind(backend))
        local state, reason, since = states.of(backend)
        if since then
            engine_state.adopt(engine, state, reason)
            engine.stalled_from = dict:get("stalled:" .. key) or false
        end
        engines_cache[key] = engine
    end
    return engine
end


local function store(backend, engine)
    local state, reason = engine_state.judge(engine)
    if states.change(backend, state, reason) then
        fleet.touch()
    end
end


local function ask(backend, engine, settings)
    local status, err = examine.generate(backend, settings)
    engine_state.trial_ended(engine, status, err, now(), settings)
    if leads() then
        store(backend, engine)
    end
end


local function try(premature, backend, engine, settings)
    local ok, err = true, nil
    if not premature then
        ok, err = pcall(ask, backend, engine, settings)
    end
    engine.trying = false
    trials_cache = trials_cache - 1
    if not ok then
        log(ERR, "edge: probe: trying ", backend.id, " failed: ", err)
    end
end


local function begin_trial(backend, engine, settings)
    local ok, err = at(0, try, backend, engine, settings)
    if not ok then
        log(ERR, "edge: probe: could not try ", backend.id, ": ", err)
        return
    end
    engine_state.trial_begins(engine, now())
    trials_cache = trials_cache + 1
end


-- What passive results and the clock say, and a trial if it is due.
local function weigh(backend, engine, settings)
    local key = backend.state_key
    if dict:get("refused:" .. key) then
        dict:delete("refused:" .. key)
        engine_state.connect_failed(engine)
    end
    local heard, faults = pulse.take(backend)
    engine_state.passed(engine, slots.in_flight(backend), heard, faults, now(), settings)
    if trials_cache < MAX_TRIALS and engine_state.wants_trial(engine, now(), settings) then
        begin_trial(backend, engine, settings)
    end
    -- For the worker that may take over.
    states.set("moved:" .. key, engine.moved)
    states.set("stalled:" .. key, engine.stalled_from)
    store(backend, engine)
    -- A wish of the control plane has run out: nobody else notices.
    if backend.state == "draining" and not states.draining(backend) then
        fleet.touch()
    end
end


local function look(backend, engine, current, metrics_interval)
    local settings = current.probe
    local address = resolve.address(backend, current.dns, settings.interval + 2 * TICK)
    if not address then
        local reason = "the name " .. backend.host .. " does not resolve"
        return engine_state.missed(engine, reason, false, now(), settings)
    end
    if address ~= backend.address then
        states.set("address:" .. backend.host, address)
        backend.address = address
        fleet.touch()
    end

    if examine.health(backend, engine, settings) then
        weigh(backend, engine, settings)
        fleet.check_key(backend)
        examine.models(backend, engine, settings)
        if engine_state.in_doubt(engine, now(), settings) then
            -- What is read seldom, because the fleet is large, would make a long prefill look hung.
            metrics_interval = min(metrics_interval, settings.metrics)
        end
        examine.metrics(backend, engine, settings, metrics_interval)
    end
end


local function look_after(backend, engine, current, metrics_interval)
    local ok, err = pcall(look, backend, engine, current, metrics_interval)
    if not ok then
        log(ERR, "edge: probe: looking at ", backend.id, " failed: ", err)
    end
    engine.looked = now()
    engine.looking = false
    if leads() then
        weigh(backend, engine, current.probe)
    end
end


-- Forgets engines that have left the fleet.
local function prune(current)
    if fleet_cache == current then
        return
    end
    fleet_cache = current
    local kept = {}
    for _, backend in pairs(current.backends) do
        kept[backend.state_key] = engines_cache[backend.state_key]
    end
    engines_cache = kept
end


local function look_at_all(premature)
    pulse.publish()
    if now() >= loads_at then
        loads_at = now() + LOADS_INTERVAL
        states.refresh_loads(fleet.current())
    end
    local leading, new = leads()
    if premature or not leading then
        return
    end
    if new then
        engines_cache = {}
    end
    local current = fleet.current()
    if not current.timers then
        return
    end
    prune(current)
    local settings, list = current.probe, {}
    for _, backend in pairs(current.backends) do
        list[#list + 1] = backend
    end
    local metrics_interval = max(settings.metrics, METRICS_COST * #list)
    local threads, n = {}, 0
    for _, backend in ipairs(list) do
        local engine = engine_of(backend)
        if engine.looking then
            weigh(backend, engine, settings)  -- its answer is outstanding; time goes on

        elseif now() - (engine.looked or 0) >= settings.interval then
            engine.looking = true
            n = n + 1
            threads[n] = spawn(look_after, backend, engine, current, metrics_interval)
            if n == WAVE then
                for i = 1, n do
                    wait(threads[i])
                end
                threads, n = {}, 0
            end

        elseif engine_state.in_doubt(engine, now(), settings) then
            weigh(backend, engine, settings)  -- out when its time is over, not at the next look
        end
    end
    for i = 1, n do
        wait(threads[i])
    end
end


-- A request could not connect. The last engine that takes requests is left in: only the probes
-- judge that one.
function _M.connect_failed(backend, model)
    if model.ready_count > 1 and engine_state.SERVING[backend.state] then
        states.set("refused:" .. backend.state_key, true)
        if states.change(backend, "down", "a request could not connect") then
            fleet.touch()
        end
        if backend.own_ca then
            -- Probes do not check this certificate: they would call it ready at once.
            dict:set("held:" .. backend.state_key, true, HOLD)
        end
    end
end


function _M.init_worker()
    local ok, err = every(TICK, look_at_all)
    if not ok then
        log(ERR, "edge: probe: could not start: ", err)
    end
    -- The first look at once: a fresh edge knows its engines before its first second is over.
    ok, err = at(0, look_at_all)
    if not ok then
        log(ERR, "edge: probe: could not start: ", err)
    end
end


return _M
