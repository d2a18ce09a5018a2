-- What state each backend is in. One worker asks the engines once a second and writes the answers
-- to a dictionary; all workers read them there. States: starting (never answered yet), ready, down.

local cjson = require "cjson.safe"
local fleet = require "edge.fleet"
local http_get = require "edge.http_get"
local resolve = require "edge.resolve"

local every = ngx.timer.every
local exiting = ngx.worker.exiting
local find = string.find
local ipairs = ipairs
local log = ngx.log
local now = ngx.now
local pairs = pairs
local spawn = ngx.thread.spawn
local wait = ngx.thread.wait
local type = type
local ERR = ngx.ERR
local NOTICE = ngx.NOTICE

local dict = ngx.shared.edge_state

local INTERVAL = 1
-- The models that an engine lists are asked for this often, in seconds.
local MODELS_INTERVAL = 15
-- Seconds that a backend stays down whose connects fail though probes pass.
local HOLD = 5
local CONNECT_MS, READ_MS = 2000, 5000
-- So many engines are asked at a time.
local WAVE = 64
-- Misses in a row until a ready engine counts as down. A busy engine answers late: that takes more.
local REFUSED_MISSES, LATE_MISSES = 2, 4


local _M = {}


local function set(key, value)
    local ok, err = dict:safe_set(key, value)
    if not ok then
        log(ERR, "edge: probe: could not store ", key, ": ", err)
    end
end


local function change(backend, state, reason)
    local key = backend.state_key
    local was = dict:get("state:" .. key)
    if was == state and dict:get("reason:" .. key) == reason then
        return
    end
    set("reason:" .. key, reason)
    if was ~= state or not dict:get("since:" .. key) then
        set("state:" .. key, state)
        set("since:" .. key, now())
        log(NOTICE, "edge: backend ", backend.id, " is ", state, reason ~= "" and ": " or "", reason)
        fleet.touch()
    end
end


local function failed(backend, reason)
    local misses = dict:incr("misses:" .. backend.state_key, 1, 0) or 1
    local was = dict:get("state:" .. backend.state_key) or "starting"
    local allowed = find(reason, "timeout", 1, true) and LATE_MISSES or REFUSED_MISSES
    if was == "ready" and misses < allowed then
        return
    end
    change(backend, was == "starting" and "starting" or "down", reason)
end


-- Stores what an engine says it serves.
local function learn_models(backend, body)
    local answer = cjson.decode(body)
    if type(answer) ~= "table" or type(answer.data) ~= "table" then
        return
    end
    local names, adapters, max_model_len = {}, {}, nil
    for i, item in ipairs(answer.data) do
        if i > 1000 then
            break
        end
        if type(item) == "table" and type(item.id) == "string" and #item.id <= 256 then
            names[#names + 1] = item.id
            if type(item.parent) == "string" then
                adapters[#adapters + 1] = item.id

            elseif type(item.max_model_len) == "number" then
                max_model_len = item.max_model_len
            end
        end
    end
    local text = cjson.encode({ names = names, adapters = adapters, max_model_len = max_model_len })
    if dict:get("reported:" .. backend.state_key) ~= text then
        set("reported:" .. backend.state_key, text)
        fleet.touch()
    end
end


local function peer_of(backend)
    -- With a CA of its own the certificate is checked where requests pass; a probe then carries no
    -- key.
    local verify = not backend.own_ca
    return {
        address = backend.address,
        port = backend.port,
        scheme = backend.scheme,
        host = backend.host,
        verify = verify,
        authorization = verify and backend.authorization or nil,
    }
end


local function probe(backend, current)
    local address = resolve.address(backend, current.dns)
    if not address then
        return failed(backend, "the name " .. backend.host .. " does not resolve")
    end
    if address ~= backend.address then
        set("address:" .. backend.host, address)
        backend.address = address
        fleet.touch()
    end

    local peer = peer_of(backend)
    local status, err = http_get.get(peer, "/health", CONNECT_MS, READ_MS)
    if not status then
        return failed(backend, err)
    end
    if status >= 500 then
        return failed(backend, "/health answered " .. status)
    end
    set("misses:" .. backend.state_key, 0)
    if not dict:get("held:" .. backend.state_key) then
        change(backend, "ready", "")
    end

    fleet.check_key(backend)
    if dict:add("asked:" .. backend.state_key, true, MODELS_INTERVAL) then
        local body
        status, body = http_get.get(peer, "/v1/models", CONNECT_MS, READ_MS)
        if status == 200 then
            learn_models(backend, body)
        end
    end
end


local function probe_all(premature)
    if premature or exiting() or not dict:add("probing", true, INTERVAL - 0.05) then
        return
    end
    local current = fleet.current()
    if not current.timers then
        return
    end
    local threads, n = {}, 0
    for _, backend in pairs(current.backends) do
        n = n + 1
        threads[n] = spawn(probe, backend, current)
        if n == WAVE then
            for i = 1, n do
                wait(threads[i])
            end
            threads, n = {}, 0
        end
    end
    for i = 1, n do
        wait(threads[i])
    end
end


-- A request could not connect. The last ready engine is left in: only the probes judge that one.
function _M.connect_failed(backend, model)
    if model.ready_count > 1 and backend.state == "ready" then
        change(backend, "down", "a request could not connect")
        if backend.own_ca then
            -- Probes do not check this certificate: they would call it ready at once.
            dict:set("held:" .. backend.state_key, true, HOLD)
        end
    end
end


local function reported(backend)
    local text = dict:get("reported:" .. backend.state_key)
    return text and cjson.decode(text) or { names = {}, adapters = {} }
end


-- Names of adapters that engines of a model say they have loaded.
function _M.adapters(model)
    local names = {}
    for _, backend in ipairs(model.backends) do
        for _, name in ipairs(reported(backend).adapters) do
            names[#names + 1] = name
        end
    end
    return names
end


-- Facts for /v1/models: max_model_len when an engine said it.
function _M.facts(model)
    for _, backend in ipairs(model.backends) do
        local max = reported(backend).max_model_len
        if max then
            return { max_model_len = max }
        end
    end
    return {}
end


-- One backend for /state.
function _M.describe(backend)
    return {
        state = dict:get("state:" .. backend.state_key) or "starting",
        reason = dict:get("reason:" .. backend.state_key) or "not probed yet",
        since = dict:get("since:" .. backend.state_key),
        reported = reported(backend).names,
    }
end


function _M.init_worker()
    local ok, err = every(INTERVAL, probe_all)
    if not ok then
        log(ERR, "edge: probe: could not start: ", err)
    end
    -- The first look at once: a fresh edge knows its engines before its first second is over.
    ok, err = ngx.timer.at(0, probe_all)
    if not ok then
        log(ERR, "edge: probe: could not start: ", err)
    end
end


return _M
