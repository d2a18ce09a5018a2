-- The fleet as this worker sees it: models, names and backends, with what the hot path needs
-- prepared. The text of fleet.json lies in a dictionary; each worker builds its own tables from it
-- when the dictionary's counter has moved.

local cjson = require "cjson.safe"
local fleet_check = require "edge.fleet_check"
local pulse = require "edge.pulse"
local states = require "edge.states"

local log = ngx.log
local ERR = ngx.ERR
local config_prefix = ngx.config.prefix
local worker_pid = ngx.worker.pid
local crc32 = ngx.crc32_long
local find = string.find
local floor = math.floor
local ipairs = ipairs
local pairs = pairs

local dict = ngx.shared.edge_fleet

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


-- Four bytes that stand for a backend in the map of prefixes.
local function tag_of(text)
    local n = crc32(text)
    return string.char(n % 256, floor(n / 256) % 256, floor(n / 65536) % 256, floor(n / 16777216))
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
        limit = given.limit,
        weight = given.weight or 1,
        tier = given.tier or 1,
        seed = crc32(id),    -- for rendezvous hashing
        at = 0,              -- its place among the candidates of the request that is being routed
        own_key = "own:" .. pid .. ":" .. id,
        total_key = "total:" .. id,
        -- What is known of an engine is forgotten when the id moves to another one.
        state_key = id .. "@" .. given.scheme .. "://" .. given.host .. ":" .. given.port,
    }
    backend.pulse = pulse.of(backend.state_key)
    backend.tag = tag_of(backend.state_key)
    backend.host_header = backend.named and given.host .. ":" .. given.port or nil
    local key = read_key(backend)
    backend.authorization = key and "Bearer " .. key or nil
    return backend
end


-- The requests of a model that wait, counted like the slots of a backend. No backend has such an id.
local function build_waiting(model_id, given)
    local id, pid = "queue/" .. model_id, worker_pid()
    return {
        id = id,
        pid = pid,
        limit = given.max_waiting,
        own_key = "own:" .. pid .. ":" .. id,
        total_key = "total:" .. id,
    }
end


-- How the engines are looked after, in seconds.
local PROBE = { interval = 1, metrics = 2, window = 5, idle = 30, suspect = 5, answer = 5 }


local function build_probe(given)
    local probe = {}
    for name, default in pairs(PROBE) do
        local ms = given[name .. "_ms"]
        probe[name] = ms and ms / 1000 or default
    end
    return probe
end


local function add_backends(model, ids, fleet)
    local place = {}
    for i, id in ipairs(ids) do
        local backend = fleet.backends[id]
        model.backends[i] = backend
        model.by_tag[backend.tag] = backend
        model.limited = model.limited or backend.limit ~= nil
        place[backend] = i
    end
    table.sort(model.backends, function(a, b)
        return a.tier < b.tier or a.tier == b.tier and place[a] < place[b]
    end)
end


local function build_fleet(text)
    local given = cjson.decode(text)
    local fleet = {
        version = given.version,
        timers = given.timers ~= false,
        dns = parse_dns(given.dns or {}),
        probe = build_probe(given.probe or {}),
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
            wait = model.wait_ms / 1000,
            waiting = build_waiting(id, model),
            limited = false,
            names = model.names,
            loras = model.loras or {},
            is_own = {},         -- its own names, as a set: others are adapters
            backends = {},       -- in the order of their tiers
            by_tag = {},
            ready = {},
        }
        for _, name in ipairs(model.names) do
            built.is_own[name] = true
        end
        add_backends(built, model.backends, fleet)
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
        pulse.keep(snapshot_cache)
    end
    states.refresh(snapshot_cache)
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
