-- The states of the backends as all workers share them in a dictionary: written by the probing
-- worker, read here.

local cjson = require "cjson.safe"
local engine_state = require "edge.engine_state"
local kv = require "edge.kv"
local shared_state = require "edge.shared_state"
local slots = require "edge.slots"
local policy = require "edge.policy"

local ipairs = ipairs
local log = ngx.log
local match = string.match
local now = ngx.now
local pairs = pairs
local tonumber = tonumber
local ERR = ngx.ERR
local INFO = ngx.INFO
local NOTICE = ngx.NOTICE

local dict = ngx.shared.edge_state
local SERVING = engine_state.SERVING
local waiting_of_others = policy.waiting_of_others
-- Who may take a backend out of rotation, and what such a wish is stored under.
local WISHES = { operator = "drain:", control = "hold:" }
-- Seconds that a wish of the control plane lasts.
local LEASE = 30


local _M = {
    WISHERS = { "operator", "control" },
}


function _M.set(key, value, ttl)
    local ok, err = dict:safe_set(key, value, ttl or 0)
    if not ok then
        log(ERR, "edge: states: could not store ", key, ": ", err)
    end
end

local set = _M.set


-- Stores a state. Returns true when it is another one than before.
function _M.change(backend, state, reason)
    local key = backend.state_key
    local was = dict:get("state:" .. key)
    if was == state and dict:get("reason:" .. key) == reason then
        return false
    end
    set("reason:" .. key, reason)
    if was == state and dict:get("since:" .. key) then
        return false
    end
    set("state:" .. key, state)
    set("since:" .. key, now())
    local quiet = SERVING[state] and SERVING[was]
    log(quiet and INFO or NOTICE, "edge: backend ", backend.id, " is ", state,
        reason ~= "" and ": " or "", reason)
    return true
end


-- State, reason and since when, as the probing worker last wrote them.
function _M.of(backend)
    local key = backend.state_key
    return dict:get("state:" .. key) or "starting", dict:get("reason:" .. key) or "not probed yet",
        dict:get("since:" .. key)
end


-- A wish: no new requests for this engine. An operator's lasts until it is taken back, over reloads too;
-- the control plane's only as long as it is repeated, because a dead one takes nothing back. Both go with
-- the engine, not with its id. Returns true when the wish is new, or was there to be taken back.
function _M.drain(backend, wanted, by)
    local key = WISHES[by] .. backend.state_key
    local since = dict:get(key)
    if wanted then
        set(key, since or now(), by == "control" and LEASE or 0)

    else
        dict:delete(key)
    end
    return wanted == (since == nil)
end


-- Since when a backend drains, or nil.
function _M.draining(backend)
    return dict:get("drain:" .. backend.state_key) or dict:get("hold:" .. backend.state_key)
end


-- Whose wishes those are.
function _M.drained_by(backend)
    local names = {}
    for _, by in ipairs(_M.WISHERS) do
        if dict:get(WISHES[by] .. backend.state_key) then
            names[#names + 1] = by
        end
    end
    return names
end


-- The state as people and metrics see it.
function _M.shown(backend)
    local state, reason, since = _M.of(backend)
    local drain = _M.draining(backend)
    if drain then
        local operator = dict:get("drain:" .. backend.state_key)
        return "draining", (operator and "asked for by an operator" or "its engine is to be restarted")
            .. (SERVING[state] and "" or "; " .. state .. ": " .. reason), drain
    end
    return state, reason, since
end


-- What an engine says that it serves: names, adapters, max_model_len.
function _M.reported(backend)
    local text = dict:get("reported:" .. backend.state_key)
    if text ~= backend.reported_text or not backend.reported then
        backend.reported_text = text
        backend.reported = text and cjson.decode(text) or { names = {}, adapters = {} }
    end
    return backend.reported
end


-- Names of adapters that engines of a model, or of a pool of it, say they have loaded.
function _M.adapters(scope)
    local names = {}
    for _, backend in ipairs(scope.backends) do
        for _, name in ipairs(_M.reported(backend).adapters) do
            names[#names + 1] = name
        end
    end
    return names
end


-- Facts for /v1/models: max_model_len when an engine said it.
function _M.facts(scope)
    for _, backend in ipairs(scope.backends) do
        local longest = _M.reported(backend).max_model_len
        if longest then
            return { max_model_len = longest }
        end
    end
    return {}
end


-- The part of estimated tokens that an engine really uses, the size of its KV cache in tokens, and how
-- often it has preempted; nil while they are not known.
function _M.kv(backend)
    local size, part, preemptions = match(dict:get("kv:" .. backend.state_key) or "", "^(%S+) (%S+) (%S+)$")
    return tonumber(part), tonumber(size), tonumber(preemptions)
end


-- The engine's own numbers; each is nil while it is not known. Kept for `ttl` seconds: an old
-- number is no number. True when the size of its KV cache is another one than before.
function _M.measured(backend, sample, ttl)
    local function text(name)
        return sample[name] or "-"
    end
    local others = "-"
    if sample.running and sample.waiting then
        others = waiting_of_others(sample.running, sample.waiting, sample.ours)
    end
    local resized = false
    if sample.kv_tokens and sample.kv_tokens > 0 then
        local part, size, preemptions = _M.kv(backend)
        resized = size ~= sample.kv_tokens
        -- Other edges are taken to have as much there.
        local edges = shared_state.edges()
        local estimated, sequences = slots.in_flight(backend.kv) * edges, slots.in_flight(backend) * edges
        local preempted = preemptions and (sample.preemptions or 0) > preemptions
        part = kv.learn(part, sample.kv_usage, sample.kv_tokens, estimated, sequences, preempted)
        -- It is the engine's as long as it runs: no time to live.
        set("kv:" .. backend.state_key, sample.kv_tokens .. " " .. part .. " " .. (sample.preemptions or 0))
    end
    set("load:" .. backend.state_key, text("running") .. " " .. text("waiting") .. " "
        .. text("kv_usage") .. " " .. text("prefix_queries") .. " " .. text("prefix_hits") .. " "
        .. others, ttl)
    return resized
end


-- running, waiting, KV usage, prefix queries, prefix hits, and how many of those waiting are others'.
function _M.load(backend)
    local text = dict:get("load:" .. backend.state_key)
    if not text then
        return nil
    end
    local running, waiting, kv_usage, queries, hits, others =
        match(text, "^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$")
    return tonumber(running), tonumber(waiting), tonumber(kv_usage), tonumber(queries), tonumber(hits),
        tonumber(others)
end


local function refresh_backend(fleet, model, backend)
    local _
    backend.state, _, backend.probed = _M.of(backend)
    if backend.named then
        backend.address = dict:get("address:" .. backend.host) or backend.address
    end
    backend.adapters = {}
    for _, name in ipairs(_M.reported(backend).adapters) do
        backend.adapters[name] = true
        fleet.adapters[name] = model.id
    end
    if _M.draining(backend) then
        backend.state = "draining"
    end
end


-- Those backends of a model, or of one of its pools, that may take requests. Suspects take them when no
-- other can: better a doubtful engine than none.
local function refresh_ready(scope)
    local ready, n, suspects, s = {}, 0, {}, 0
    for _, backend in ipairs(scope.backends) do
        local state = backend.state
        if backend.address then
            if SERVING[state] or (not backend.probed and state == "starting") then
                n = n + 1
                ready[n] = backend

            elseif state == "suspect" then
                s = s + 1
                suspects[s] = backend
            end
        end
    end
    if n == 0 then
        ready, n = suspects, s
    end
    scope.ready, scope.ready_count = ready, n
end


-- State, address and readiness of every backend into the tables of a fleet.
function _M.refresh(fleet)
    fleet.adapters = {}
    for _, model in pairs(fleet.models) do
        for _, backend in ipairs(model.backends) do
            refresh_backend(fleet, model, backend)
        end
        refresh_ready(model)
        for _, pool in pairs(model.pools) do
            refresh_ready(pool)
        end
        model.longest = _M.facts(model).max_model_len
    end
    _M.refresh_loads(fleet)
end


local function has_budget(scope)
    for _, backend in ipairs(scope.backends) do
        if backend.kv.limit then
            return true
        end
    end
    return false
end


-- How much each engine's KV cache may hold of what was estimated, and whether requests may have to wait.
local function refresh_budgets(model)
    for _, backend in ipairs(model.backends) do
        local part, size = _M.kv(backend)
        -- Edges that share an engine each give away their share.
        backend.kv.limit = model.kv_budget and size and kv.budget(size, part) / shared_state.edges() or nil
    end
    model.limited = model.bounded or has_budget(model)
end


-- The engines' own numbers into the tables of a fleet.
function _M.refresh_loads(fleet)
    for _, backend in pairs(fleet.backends) do
        local _, _, kv_usage, _, _, waiting_others = _M.load(backend)
        backend.kv_usage, backend.waiting_others = kv_usage, waiting_others
    end
    for _, model in pairs(fleet.models) do
        refresh_budgets(model)
        for _, pool in pairs(model.pools) do
            pool.limited = pool.bounded or has_budget(pool)
        end
    end
end


return _M
