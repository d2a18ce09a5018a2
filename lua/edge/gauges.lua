-- Gauges for Prometheus. Read when asked for: nothing stored can go stale, and what is not known is
-- not there.

local engine_state = require "edge.engine_state"
local fleet = require "edge.fleet"
local promtext = require "edge.promtext"
local queue = require "edge.queue"
local slots = require "edge.slots"
local states = require "edge.states"

local ipairs = ipairs
local select = select


local _M = {}


local function each_backend(current, visit)
    for _, model in ipairs(current.list) do
        for _, backend in ipairs(model.backends) do
            visit(model, backend)
        end
    end
end


local function labels_of(model, backend, ...)
    return promtext.labels("model", model.id, "backend", backend.id, ...)
end


local function write_states(out, current)
    promtext.family(out, "signalbox_backend_state", "gauge", "1 for the state that a backend is in.")
    each_backend(current, function(model, backend)
        local state = states.shown(backend)
        for _, name in ipairs(engine_state.ALL) do
            promtext.sample(out, "signalbox_backend_state", labels_of(model, backend, "state", name),
                            state == name and 1 or 0)
        end
    end)
end


-- The engines' own numbers: name, kind, help, in the order of states.load.
local ENGINE = {
    { "signalbox_engine_running", "gauge", "Requests that the engine says it runs." },
    { "signalbox_engine_waiting", "gauge", "Requests that the engine says wait inside it." },
    { "signalbox_engine_kv_usage_ratio", "gauge", "Share of the engine's KV cache in use, 0 to 1." },
    { "signalbox_engine_prefix_queries_total", "counter", "Tokens looked up in the engine's prefix cache." },
    { "signalbox_engine_prefix_hits_total", "counter", "Tokens found in the engine's prefix cache." },
}


local function write_engines(out, current)
    for i, family in ipairs(ENGINE) do
        promtext.family(out, family[1], family[2], family[3])
        each_backend(current, function(model, backend)
            local value = select(i, states.load(backend))
            if value then
                promtext.sample(out, family[1], labels_of(model, backend), value)
            end
        end)
    end
end


-- All gauges as Prometheus text, appended to `out`.
function _M.write(out)
    local current = fleet.current()
    promtext.family(out, "signalbox_in_flight", "gauge", "Requests in flight by backend.")
    each_backend(current, function(model, backend)
        promtext.sample(out, "signalbox_in_flight", labels_of(model, backend), slots.in_flight(backend))
    end)
    promtext.family(out, "signalbox_queue_length", "gauge", "Requests that wait for a backend by model.")
    for _, model in ipairs(current.list) do
        promtext.sample(out, "signalbox_queue_length", promtext.labels("model", model.id),
                        queue.length(model))
    end
    write_states(out, current)
    write_engines(out, current)
    promtext.family(out, "signalbox_fleet_version", "gauge", "Version of fleet.json that is served.")
    promtext.sample(out, "signalbox_fleet_version", "", current.version)
end


return _M
