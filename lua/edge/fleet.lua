-- The fleet as this worker sees it: models, names and backends, with what the hot path needs
-- prepared. The text of fleet.json lies in a dictionary; each worker builds its own tables from it
-- when the dictionary's counter has moved.

local cjson = require "cjson.safe"
local fleet_check = require "edge.fleet_check"

local log = ngx.log
local ERR = ngx.ERR
local config_prefix = ngx.config.prefix
local worker_pid = ngx.worker.pid
local find = string.find
local ipairs = ipairs
local pairs = pairs

local dict = ngx.shared.edge_fleet
local states = ngx.shared.edge_state

-- One counter for both the fleet and the states of its backends: one look-up per request tells that
-- nothing moved.
local TICK = "tick"
local FLEET_TICK = "fleet_tick"
local JSON = "json"


local _M = {}

-- This worker's tables and the counters they were built at.
local snapshot_cache
local tick_cache
local fleet_tick_cache


-- The engine's own key, from its file or variable; nil when there is none.
local function read_key(backend)
    local key
    if backend.key_env then
        key = os.getenv(backend.key_env)

    elseif backend.key_file then
        local file, err = io.open(backend.key_file, "r")
        if not file then
            log(ERR, "edge: fleet: could not read the key of backend ", backend.id, ": ", err)
            return nil
        end
        key = file:read("*l")
        file:close()
    end
    return key and key:match("^%s*(%S+)%s*$")
end


local function is_address(host)
    return find(host, "^[%d.]+$") ~= nil or find(host, ":", 1, true) ~= nil
end


-- Name servers as resty.dns.resolver takes them.
local function parse_dns(list)
    local servers = {}
    for i, text in ipairs(list) do
        local address, port = text:match("^%[?(.-)%]?:(%d+)$")
        servers[i] = { address, tonumber(port) }
    end
    return servers
end


-- A host or address as it stands in front of a port: IPv6 in brackets.
local function literal(host)
    return host and find(host, ":", 1, true) and "[" .. host .. "]" or host
end


local function build_backend(id, given)
    local served = {}
    for _, name in ipairs(given.served) do
        served[name] = true
    end
    local pid = worker_pid()
    local backend = {
        id = id,
        pid = pid,
        model = given.model,
        host = literal(given.host),
        port = given.port,
        scheme = given.scheme,
        address = literal(given.addresses[1]),
        named = not is_address(given.host),
        tls_location = given.tls_location,
        own_ca = given.own_ca,
        name = given.name,
        served = served,
        key_file = given.key_file,
        key_env = given.key_env,
        own_key = "own:" .. pid .. ":" .. id,
        total_key = "total:" .. id,
        -- What is known of an engine is forgotten when the id moves to another one.
        state_key = id .. "@" .. given.scheme .. "://" .. given.host .. ":" .. given.port,
    }
    backend.host_header = backend.named and given.host .. ":" .. given.port or nil
    local key = read_key(backend)
    backend.authorization = key and "Bearer " .. key or nil
    return backend
end


local function build_fleet(text)
    local given = cjson.decode(text)
    local fleet = {
        version = given.version,
        timers = given.timers ~= false,
        dns = parse_dns(given.dns or {}),
        default_model = given.default_model,
        names = given.names,
        models = {},
        backends = {},
        list = {},
    }
    for id, backend in pairs(given.backends) do
        fleet.backends[id] = build_backend(id, backend)
    end
    local single, count = nil, 0
    for id, model in pairs(given.models) do
        local built = {
            id = id,
            policy = model.policy,
            connect = model.connect_ms / 1000,
            send = model.send_ms / 1000,
            read = model.read_ms / 1000,
            names = model.names,
            loras = model.loras or {},
            backends = {},
            ready = {},
        }
        for i, backend_id in ipairs(model.backends) do
            built.backends[i] = fleet.backends[backend_id]
        end
        fleet.models[id] = built
        fleet.list[#fleet.list + 1] = built
        single, count = id, count + 1
    end
    table.sort(fleet.list, function(a, b) return a.id < b.id end)
    if not fleet.default_model and count == 1 then
        fleet.default_model = single
    end
    return fleet
end


-- Adapters that an engine says it has loaded, as a set of names.
local function adapters_of(backend)
    local set = {}
    local reported = cjson.decode(states:get("reported:" .. backend.state_key) or "{}")
    for _, name in ipairs(reported.adapters or {}) do
        set[name] = true
    end
    return set
end


-- State, address and readiness of every backend, as the probing worker last wrote them.
local function refresh_states(fleet)
    fleet.adapters = {}
    for _, model in pairs(fleet.models) do
        local ready, n = {}, 0
        for _, backend in ipairs(model.backends) do
            backend.state = states:get("state:" .. backend.state_key) or "starting"
            backend.probed = states:get("since:" .. backend.state_key) ~= nil
            if backend.named then
                backend.address = states:get("address:" .. backend.host) or backend.address
            end
            backend.adapters = adapters_of(backend)
            for name in pairs(backend.adapters) do
                fleet.adapters[name] = model.id
            end
            if backend.address and (backend.state == "ready" or not backend.probed) then
                n = n + 1
                ready[n] = backend
            end
        end
        model.ready, model.ready_count = ready, n
    end
end


-- The fleet as it is now. One dictionary look-up when nothing has changed.
function _M.current()
    local tick = dict:get(TICK)
    if tick == tick_cache then
        return snapshot_cache
    end

    local fleet_tick = dict:get(FLEET_TICK)
    if fleet_tick ~= fleet_tick_cache then
        snapshot_cache = build_fleet(dict:get(JSON))
        fleet_tick_cache = fleet_tick
    end
    refresh_states(snapshot_cache)
    tick_cache = tick
    return snapshot_cache
end


-- Tells all workers that a state or an address has changed.
function _M.touch()
    local _, err = dict:incr(TICK, 1, 0)
    if err then
        log(ERR, "edge: fleet: could not announce a change: ", err)
    end
end


-- Makes all workers read the engine's key again when its file has changed.
function _M.check_key(backend)
    local key = backend.key_file and read_key(backend)
    if key and backend.authorization ~= "Bearer " .. key then
        dict:incr(FLEET_TICK, 1, 0)
        _M.touch()
    end
end


-- Takes a new fleet.json. Returns its version, or nil and the reason; then nothing has changed.
function _M.put(text)
    local problem = fleet_check.check(text)
    if problem then
        return nil, problem
    end
    -- Whatever is wrong with it beyond that shows here, not in the first request.
    local ok, built = pcall(build_fleet, text)
    if not ok then
        return nil, "fleet.json cannot be used: " .. tostring(built)
    end
    if built.default_model and not built.models[built.default_model] then
        return nil, "default_model names an unknown model"
    end
    local err
    ok, err = dict:safe_set(JSON, text)
    if not ok then
        return nil, "could not store fleet.json: " .. err
    end
    dict:incr(FLEET_TICK, 1, 0)
    _M.touch()
    return built.version
end


-- In the master, at start and at every reload: conf/fleet.json is the truth, no control plane is
-- needed.
function _M.init()
    local path = config_prefix() .. "conf/fleet.json"
    local file, err = io.open(path, "r")
    if not file then
        error("could not read fleet.json: " .. err)
    end
    local text = file:read("*a")
    file:close()

    local version
    version, err = _M.put(text)
    if not version then
        error(path .. ": " .. err)
    end
end


return _M
