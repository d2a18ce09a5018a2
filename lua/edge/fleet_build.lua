-- The tables of a fleet.json, with what the hot path needs prepared. Reads the engines' keys, changes
-- nothing.

local cjson = require "cjson.safe"
local fair = require "edge.fair"
local lending = require "edge.lending"
local pulse = require "edge.pulse"
local redis = require "edge.redis"
local rules = require "edge.rules"
local slots = require "edge.slots"

local crc32 = ngx.crc32_long
local find = string.find
local floor = math.floor
local gsub = string.gsub
local ipairs = ipairs
local log = ngx.log
local pairs = pairs
local sort = table.sort
local tonumber = tonumber
local ERR = ngx.ERR


local _M = {}


-- The engine's own key, from its file or variable; nil when there is none.
function _M.read_key(backend)
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


-- What differs between two machines with the same fleet.yaml, or with the number of its changes, in a
-- fleet.json without white space.
local OF_MACHINE = {
    '"version":%d+', '"published":%d+', '"dns":%b[]', '"addresses":%b[]', '"key_file":"[^"]*"',
    '"tls_location":"[^"]*"', '"tls_upstream":"[^"]*"', '"own_ca":%a+',
}


-- A number that edges of the same fleet have in common. Without commas: what is left out stands elsewhere in
-- a fleet that came from another machine.
local function hash_of(text)
    text = gsub(text, "%s+", "")
    for _, pattern in ipairs(OF_MACHINE) do
        text = gsub(text, pattern, "")
    end
    return crc32((gsub(text, ",", "")))
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


-- Names an engine under its id: what is known of it and what it runs do not pass to the engine that an
-- id moves to.
function _M.state_key(id, given)
    return id .. "@" .. given.scheme .. "://" .. given.host .. ":" .. given.port
end


-- The address of an engine as people write it.
function _M.address(given)
    return literal(given.host) .. ":" .. given.port
end


local function build_count(id, limit)
    local counted = { limit = limit }
    slots.name(counted, id)
    return counted
end


local function build_backend(id, given)
    local served = {}
    for _, name in ipairs(given.served) do
        served[name] = true
    end
    local backend = {
        id = id,
        model = given.model,
        host = literal(given.host),
        port = given.port,
        scheme = given.scheme,
        address = literal(given.addresses[1]),
        named = not is_address(given.host),
        tls_location = given.tls_location,
        tls_upstream = given.tls_upstream,
        own_ca = given.own_ca,
        name = given.name,
        served = served,
        key_file = given.key_file,
        key_env = given.key_env,
        limit = given.limit,
        kv = build_count("kv/" .. id),  -- estimated tokens in its KV cache; limited once its size is known
        weight = given.weight or 1,
        tier = given.tier or 1,
        pool = given.pool,
        seed = crc32(id),    -- for rendezvous hashing
        at = 0,              -- its place among the candidates of the request that is being routed
        state_key = _M.state_key(id, given),
    }
    slots.name(backend, backend.state_key)
    if backend.limit and redis.options() then
        lending.register(backend)
    end
    backend.pulse = pulse.of(backend.state_key)
    backend.tag = tag_of(backend.state_key)
    local usual = given.scheme == "https" and given.port == 443
    backend.host_header = backend.named and given.host .. (usual and "" or ":" .. given.port) or nil
    local key = _M.read_key(backend)
    backend.authorization = key and "Bearer " .. key or nil
    return backend
end


-- The requests of a model, or of one of its pools, that wait, also by class: counted like the slots of
-- a backend. No backend has such an id.
local function build_waiting(model_id, given, pool)
    local id = "queue/" .. model_id .. (pool and " " .. pool or "")
    local waiting = build_count(id, given.max_waiting)
    waiting.classes = {}
    for class, name in ipairs(fair.NAMES) do
        waiting.classes[class] = build_count(id .. "/class/" .. name)
    end
    return waiting
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
        model.bounded = model.bounded or backend.limit ~= nil
        place[backend] = i
    end
    sort(model.backends, function(a, b)
        return a.tier < b.tier or a.tier == b.tier and place[a] < place[b]
    end)
end


-- Each pool of a model as what requests may see of it (see rules.scope): the same fields as the model's.
local function add_pools(model, given)
    for _, backend in ipairs(model.backends) do
        local name = backend.pool
        local pool = name and model.pools[name]
        if name and not pool then
            pool = {
                backends = {}, ready = {}, limited = false, bounded = false,
                waiting = build_waiting(model.id, given, name),
            }
            model.pools[name] = pool
            model.waits[#model.waits + 1] = pool.waiting
        end
        if pool then
            pool.backends[#pool.backends + 1] = backend
            pool.bounded = pool.bounded or backend.limit ~= nil
        end
    end
end


-- The tables for a text that fleet_check has passed.
function _M.build(text)
    local given = cjson.decode(text)
    local fleet = {
        version = given.version,
        published = given.published,
        hash = hash_of(text),
        timers = given.timers ~= false,
        dns = parse_dns(given.dns or {}),
        probe = build_probe(given.probe or {}),
        keys = given.keys or false,
        default_model = given.default_model,
        count_usage = given.count_usage or false,
        names = given.names,
        rules = rules.prepare(given.rules or {}),
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
            limited = false,     -- whether requests may have to wait: states.refresh_loads says
            bounded = false,     -- whether a backend has a limit of its own
            kv_budget = model.kv_budget ~= false,
            names = model.names,
            loras = model.loras or {},
            fallback = model.fallback,
            limits = model.limits,
            is_own = {},         -- its own names, as a set: others are adapters
            backends = {},       -- in the order of their tiers
            by_tag = {},
            ready = {},
            pools = {},
            waits = {},          -- what counts its waiting requests, those of its pools apart
        }
        built.waits[1] = built.waiting
        for _, name in ipairs(model.names) do
            built.is_own[name] = true
        end
        add_backends(built, model.backends, fleet)
        add_pools(built, model)
        fleet.models[id] = built
        fleet.list[#fleet.list + 1] = built
        single, count = id, count + 1
    end
    sort(fleet.list, function(a, b) return a.id < b.id end)
    if not fleet.default_model and count == 1 then
        fleet.default_model = single
    end
    return fleet
end


return _M
