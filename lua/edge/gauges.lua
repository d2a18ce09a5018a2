-- Gauges for Prometheus. Read when asked for: nothing stored can go stale, and what is not known is
-- not there.

local engine_state = require "edge.engine_state"
local fair = require "edge.fair"
local fleet = require "edge.fleet"
local leaving = require "edge.leaving"
local promtext = require "edge.promtext"
local places = require "edge.places"
local redis = require "edge.redis"
local shared_state = require "edge.shared_state"
local slots = require "edge.slots"
local states = require "edge.states"
local workers = require "edge.workers"

local floor = math.floor
local ipairs = ipairs
local pairs = pairs
local select = select


local _M = {}

local version_cache


-- In the master, before any worker: `version` is Signalbox's own.
function _M.init(version)
    version_cache = version
end


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


-- A family with a sample of each backend whose value_of is known.
local function write_backends(out, current, name, kind, help, value_of)
    promtext.family(out, name, kind, help)
    each_backend(current, function(model, backend)
        local value = value_of(backend)
        if value then
            promtext.sample(out, name, labels_of(model, backend), value)
        end
    end)
end


-- What has left the fleet counts until it is empty. An id that moved to another engine is one series: the
-- sum of both.
local function write_in_flight(out, current)
    local left = {}
    for _, entry in ipairs(leaving.list(current)) do
        local labels = promtext.labels("model", entry.model, "backend", entry.id)
        left[labels] = (left[labels] or 0) + entry.in_flight
    end
    promtext.family(out, "signalbox_in_flight", "gauge", "Sequences in flight by backend.")
    each_backend(current, function(model, backend)
        local labels = labels_of(model, backend)
        promtext.sample(out, "signalbox_in_flight", labels, slots.in_flight(backend) + (left[labels] or 0))
        left[labels] = nil
    end)
    for labels, in_flight in pairs(left) do
        promtext.sample(out, "signalbox_in_flight", labels, in_flight)
    end
end


local function write_slots(out, current)
    write_in_flight(out, current)
    write_backends(out, current, "signalbox_backend_limit", "gauge",
                   "Sequences that a backend may have in flight; absent where there is no limit.",
                   function(backend) return backend.limit end)
    write_backends(out, current, "signalbox_kv_in_flight_tokens", "gauge",
                   "Estimated tokens in flight by backend.",
                   function(backend) return slots.in_flight(backend.kv) end)
    write_backends(out, current, "signalbox_kv_budget_tokens", "gauge",
                   "Estimated tokens that a backend may have in flight; absent while unknown.",
                   function(backend) return backend.kv.limit end)
end


local function write_queues(out, current)
    promtext.family(out, "signalbox_queue_length", "gauge", "Requests that wait, by model and priority.")
    for _, model in ipairs(current.list) do
        for class, length in ipairs(places.waiting_by_class(model)) do
            promtext.sample(out, "signalbox_queue_length",
                            promtext.labels("model", model.id, "priority", fair.NAMES[class]), length)
        end
    end
    promtext.family(out, "signalbox_queue_limit", "gauge", "Requests of a model that may wait.")
    for _, model in ipairs(current.list) do
        promtext.sample(out, "signalbox_queue_limit", promtext.labels("model", model.id),
                        model.waiting.limit)
    end
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
    write_backends(out, current, "signalbox_backend_state_since_seconds", "gauge",
                   "When a backend came into its state, in Unix seconds.",
                   function(backend) return (select(3, states.shown(backend))) end)
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
        write_backends(out, current, family[1], family[2], family[3],
                       function(backend) return (select(i, states.load(backend))) end)
    end
end


local function write_workers(out)
    local draining, all = 0, workers.list()
    for _, worker in ipairs(all) do
        draining = draining + (worker.exiting and 1 or 0)
    end
    promtext.family(out, "signalbox_workers", "gauge",
                    "Workers of the edge: serving, or finishing their streams after a reload.")
    promtext.sample(out, "signalbox_workers", promtext.labels("state", "serving"), #all - draining)
    promtext.sample(out, "signalbox_workers", promtext.labels("state", "draining"), draining)
end


-- Only where there is a Redis: what is not known is not there.
local function write_state(out)
    promtext.family(out, "signalbox_state_up", "gauge",
                    "1 while the Redis that holds what several edges share answers; absent without one.")
    promtext.family(out, "signalbox_state_edges", "gauge", "Edges that share a Redis, as last seen.")
    if redis.options() then
        promtext.sample(out, "signalbox_state_up", "", redis.usable() and 1 or 0)
        promtext.sample(out, "signalbox_state_edges", "", shared_state.edges())
    end
end


local function dictionaries()
    local names = {}
    for name in pairs(ngx.shared) do
        names[#names + 1] = name
    end
    table.sort(names)
    return names
end


-- What bounds everything. Free are whole pages: a dictionary of small entries has room left at 0.
local function write_dictionaries(out)
    local names = dictionaries()
    promtext.family(out, "signalbox_dict_capacity_bytes", "gauge",
                    "Size of a dictionary that the workers share.")
    for _, name in ipairs(names) do
        promtext.sample(out, "signalbox_dict_capacity_bytes", promtext.labels("dict", name),
                        ngx.shared[name]:capacity())
    end
    promtext.family(out, "signalbox_dict_free_bytes", "gauge",
                    "Free pages of a dictionary that the workers share.")
    for _, name in ipairs(names) do
        promtext.sample(out, "signalbox_dict_free_bytes", promtext.labels("dict", name),
                        ngx.shared[name]:free_space())
    end
end


-- 1022001 is 1.22.1.
local function nginx_version()
    local number = ngx.config.nginx_version
    return floor(number / 1000000) .. "." .. floor(number / 1000) % 1000 .. "." .. number % 1000
end


-- All gauges as Prometheus text, appended to `out`.
function _M.write(out)
    local current = fleet.current()
    write_slots(out, current)
    write_queues(out, current)
    write_states(out, current)
    write_engines(out, current)
    write_workers(out)
    write_dictionaries(out)
    write_state(out)
    promtext.family(out, "signalbox_fleet_version", "gauge", "Version of fleet.json that is served.")
    promtext.sample(out, "signalbox_fleet_version", "", current.version)
    if current.published then
        promtext.family(out, "signalbox_fleet_published_version", "gauge",
                        "Version of the fleet that a control plane elsewhere has published.")
        promtext.sample(out, "signalbox_fleet_published_version", "", current.published)
    end
    promtext.family(out, "signalbox_fleet_hash", "gauge", "Equal in edges that serve the same fleet.yaml.")
    promtext.sample(out, "signalbox_fleet_hash", "", current.hash)
    promtext.family(out, "signalbox_build_info", "gauge", "1; the versions are in the labels.")
    promtext.sample(out, "signalbox_build_info",
                    promtext.labels("version", version_cache, "nginx", nginx_version()), 1)
end


return _M
