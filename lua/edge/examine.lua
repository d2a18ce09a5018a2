-- Asks one engine: /health, /metrics, /v1/models, and for one token. What it says goes into its
-- record (engine_state.lua).

local cjson = require "cjson.safe"
local engine_state = require "edge.engine_state"
local fleet = require "edge.fleet"
local http_get = require "edge.http_get"
local promread = require "edge.promread"
local slots = require "edge.slots"
local states = require "edge.states"

local concat = table.concat
local find = string.find
local gsub = string.gsub
local ipairs = ipairs
local max = math.max
local min = math.min
local now = ngx.now
local type = type

local dict = ngx.shared.edge_state

-- The models that an engine lists are asked for this often, in seconds, and more often when they
-- are wrong.
local MODELS_INTERVAL, MODELS_RETRY = 15, 2
-- An engine without /metrics is not asked again for so long.
local NO_METRICS = 60
local CONNECT_MS = 2000


local _M = {}


-- A certificate of its own CA is checked where requests pass; a probe then carries no key, and what
-- the engine says without it proves nothing.
function _M.is_blind(backend)
    return backend.own_ca and backend.authorization ~= nil
end


local function peer_of(backend)
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


-- Stores what an engine says it serves.
local function learn_models(backend, engine, status, body)
    local answer = status == 200 and cjson.decode(body)
    if type(answer) ~= "table" or type(answer.data) ~= "table" then
        if not _M.is_blind(backend) then
            engine_state.listed(engine, status == 200 and 0 or status)
        end
        return
    end
    local names, adapters, max_model_len, found = {}, {}, nil, false
    for i, item in ipairs(answer.data) do
        if i > 1000 then
            break
        end
        if type(item) == "table" and type(item.id) == "string" and #item.id <= 256 then
            names[#names + 1] = item.id
            found = found or item.id == backend.name or backend.served[item.id] == true
            if type(item.parent) == "string" then
                adapters[#adapters + 1] = item.id

            elseif type(item.max_model_len) == "number" then
                max_model_len = item.max_model_len
            end
        end
    end
    -- An engine says what it likes; this reaches a page, a terminal and a log.
    local some = gsub(concat(names, ", ", 1, min(#names, 3)), "[^%w%p ]", "?")
    engine_state.listed(engine, 200, found, some)
    local text = cjson.encode({ names = names, adapters = adapters, max_model_len = max_model_len })
    if dict:get("reported:" .. backend.state_key) ~= text then
        states.set("reported:" .. backend.state_key, text)
        fleet.touch()
    end
end


-- Asks for the model list when its time has come.
function _M.models(backend, engine, settings)
    local wrong = engine.refused or engine.unlisted
    if engine.models_at and now() - engine.models_at < (wrong and MODELS_RETRY or MODELS_INTERVAL) then
        return
    end
    engine.models_at = now()
    local status, body = http_get.get(peer_of(backend), "/v1/models", CONNECT_MS, settings.answer * 1000)
    if status then
        learn_models(backend, engine, status, body)
    end
end


-- Reads the engine's own numbers when their time has come.
function _M.metrics(backend, engine, settings, interval)
    if engine.metrics_at and now() - engine.metrics_at < interval then
        return
    end
    engine.metrics_at = now()
    local before = slots.in_flight(backend)
    local status, body = http_get.get(peer_of(backend), "/metrics", CONNECT_MS, settings.answer * 1000)
    if status == 200 then
        local sample = promread.read(body)
        sample.ours = max(before, slots.in_flight(backend))
        engine_state.measured(engine, sample, now())
        if states.measured(backend, sample, 3 * interval + settings.answer) then
            fleet.touch()
        end

    else
        engine_state.unmeasured(engine)
        if status == 404 then
            engine.metrics_at = now() + NO_METRICS
        end
    end
end


-- True when the engine answers /health.
function _M.health(backend, engine, settings)
    local status, err = http_get.get(peer_of(backend), "/health", CONNECT_MS, settings.answer * 1000)
    if not status then
        engine_state.missed(engine, err, find(err, "timeout", 1, true) ~= nil, now(), settings)
        return false
    end
    if status >= 500 then
        engine_state.missed(engine, "/health answered " .. status, false, now(), settings)
        return false
    end
    if not dict:get("held:" .. backend.state_key) then
        engine_state.reached(engine)
    end
    return true
end


-- Asks for one token. Returns the status, or nil and why there is none.
function _M.generate(backend, settings)
    local body = cjson.encode({ model = backend.name, prompt = "x", max_tokens = 1 })
    return http_get.post(peer_of(backend), "/v1/completions", body, CONNECT_MS, settings.window * 1000)
end


return _M
