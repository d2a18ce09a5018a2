-- The admin listener: loopback, with a token. Never the public port.

local cjson = require "cjson.safe"
local body = require "edge.body"
local engine_state = require "edge.engine_state"
local fair = require "edge.fair"
local fleet = require "edge.fleet"
local gauges = require "edge.gauges"
local keys = require "edge.keys"
local leaving = require "edge.leaving"
local live_view = require "edge.live_view"
local metrics = require "edge.metrics"
local places = require "edge.places"
local shared_state = require "edge.shared_state"
local slots = require "edge.slots"
local states = require "edge.states"
local workers = require "edge.workers"

local ngx = ngx
local bxor, bor = bit.bxor, bit.bor
local byte = string.byte
local concat = table.concat
local ipairs = ipairs
local match = string.match


local _M = {}

local token


-- In the master, which may read a file that workers may not.
function _M.init()
    local path = ngx.config.prefix() .. "run/admin.token"
    local file, err = io.open(path, "r")
    if not file then
        error("could not read the admin token: " .. err)
    end
    token = (file:read("*l") or ""):match("^%s*(%S+)%s*$")
    file:close()
    if not token or #token < 16 then
        error(path .. " holds no token of at least 16 characters")
    end
end


-- Takes the same time whatever the first wrong character is.
local function same(given, expected)
    local difference = #given == #expected and 0 or 1
    for i = 1, #expected do
        difference = bor(difference, bxor(byte(given, i) or 0, byte(expected, i)))
    end
    return difference == 0
end


local function reply(status, text, content_type)
    ngx.status = status
    ngx.header["Content-Type"] = content_type or "application/json"
    ngx.header["Content-Length"] = #text
    ngx.print(text)
    return ngx.exit(ngx.HTTP_OK)
end


local function fail(status, message)
    return reply(status, cjson.encode({ error = { message = message } }))
end


-- JSON arrays by hand: Debian's cjson writes an empty table as {}.
local function array(list, encode)
    local parts = {}
    for i, item in ipairs(list) do
        parts[i] = encode(item)
    end
    return "[" .. concat(parts, ",") .. "]"
end


local function describe_backend(backend, requests)
    local state, reason, since = states.shown(backend)
    local running, waiting, kv_usage = states.load(backend)
    local _, kv_size = states.kv(backend)
    return '{"id":' .. cjson.encode(backend.id)
        .. ',"model":' .. cjson.encode(backend.model)
        .. ',"address":' .. cjson.encode(backend.host .. ":" .. backend.port)
        .. ',"scheme":' .. cjson.encode(backend.scheme)
        .. ',"state":' .. cjson.encode(state)
        .. ',"reason":' .. cjson.encode(reason)
        .. ',"since":' .. cjson.encode(since or cjson.null)
        .. ',"drained_by":' .. array(states.drained_by(backend), cjson.encode)
        .. ',"in_flight":' .. slots.in_flight(backend)
        .. ',"running":' .. (running or "null")
        .. ',"waiting":' .. (waiting or "null")
        .. ',"kv_usage":' .. (kv_usage or "null")
        .. ',"kv_tokens":' .. (kv_size or "null")
        .. ',"kv_in_flight":' .. slots.in_flight(backend.kv)
        .. ',"requests":' .. (requests[backend.id] or 0)
        .. ',"reported":' .. array(states.reported(backend).names, cjson.encode) .. "}"
end


local function describe_waiting(model)
    local lengths, parts = places.waiting_by_class(model), {}
    for class, name in ipairs(fair.NAMES) do
        parts[class] = '"' .. name .. '":' .. lengths[class]
    end
    return "{" .. concat(parts, ",") .. "}"
end


local function describe_model(model)
    local ids = {}
    for i, backend in ipairs(model.backends) do
        ids[i] = backend.id
    end
    return '{"id":' .. cjson.encode(model.id)
        .. ',"names":' .. array(model.names, cjson.encode)
        .. ',"loras":' .. array(model.loras, cjson.encode)
        .. ',"policy":' .. cjson.encode(model.policy)
        .. ',"queue_length":' .. places.waiting(model)
        .. ',"waiting":' .. describe_waiting(model)
        .. ',"backends":' .. array(ids, cjson.encode) .. "}"
end


local function get_state()
    local current = fleet.current()
    local requests = metrics.requests_by_backend()
    local backends = {}
    for _, model in ipairs(current.list) do
        for _, backend in ipairs(model.backends) do
            backends[#backends + 1] = backend
        end
    end
    return reply(200, '{"generation":' .. cjson.encode(workers.generation())
        .. ',"fleet_version":' .. current.version
        .. ',"published_version":' .. (current.published or "null")
        .. ',"keys_version":' .. keys.version()
        .. ',"state":' .. cjson.encode(shared_state.describe())
        .. ',"workers":' .. array(workers.list(), cjson.encode)
        .. ',"models":' .. array(current.list, describe_model)
        .. ',"backends":' .. array(backends, function(backend)
            return describe_backend(backend, requests)
        end)
        .. ',"leaving":' .. array(leaving.list(current), cjson.encode) .. "}")
end


local function get_metrics()
    local out = {}
    metrics.write(out)
    gauges.write(out)
    return reply(200, concat(out), "text/plain; version=0.0.4; charset=utf-8")
end


-- Gives the body to `put`, which takes it or says why not.
local function take(put)
    ngx.req.read_body()
    local text, err = body.text()
    if not text then
        return fail(500, err)
    end
    local version
    version, err = put(text)
    if not version then
        return fail(400, err)
    end
    return reply(200, cjson.encode({ version = version }))
end


-- Takes a backend out of rotation for an operator (or with by=control for the control plane), or back in.
-- What runs there goes on.
local function set_draining(id, wanted)
    local by = ngx.var.arg_by or "operator"
    if by ~= "operator" and by ~= "control" then
        return fail(400, "by is operator or control.")
    end
    local current = fleet.current()
    local backend = current.backends[id]
    if not backend then
        return fail(404, "There is no backend '" .. id .. "'. GET /state lists all.")
    end
    if states.drain(backend, wanted, by) then
        fleet.touch()
    end
    local left = 0
    for _, other in ipairs(current.models[backend.model].backends) do
        if other ~= backend and engine_state.SERVING[other.state] then
            left = left + 1
        end
    end
    return reply(200, cjson.encode({
        id = id,
        draining = states.draining(backend) ~= nil,
        in_flight = slots.in_flight(backend),
        others_ready = left,
    }))
end


local function get_requests()
    local text, err = live_view.list()
    if not text then
        return fail(500, err)
    end
    return reply(200, text)
end


local ENDS = {
    queued = "It waited and has ended.",
    reading = "It ends when its body has arrived and its engine sends the first byte.",
    prefill = "It ends at the engine's first byte; until then it goes on there.",
    decode = "It ends at its next byte.",
}


local function delete_request(id)
    local doing, silent = live_view.cancel(id)
    if doing then
        return reply(200, cjson.encode({ id = id, state = doing, message = ENDS[doing] }))
    end
    return fail(404, "No running request has the id '" .. id .. "'." .. (silent
        and " A worker that finishes its streams after a reload has not answered: if it has the"
            .. " request, that ends at its next byte." or " GET /requests lists those that run."))
end


local CALLS = {
    ["GET /state"] = get_state,
    ["GET /metrics"] = get_metrics,
    ["PUT /fleet"] = function() return take(fleet.put) end,
    ["PUT /keys"] = function() return take(keys.put) end,
    ["GET /requests"] = get_requests,
}
-- Calls with an id in their address: method, pattern, what it does.
local CALLS_WITH_ID = {
    { "POST", "^/backends/([%w._-]+)/drain$", function(id) return set_draining(id, true) end },
    { "POST", "^/backends/([%w._-]+)/resume$", function(id) return set_draining(id, false) end },
    { "DELETE", "^/requests/([%w._:-]+)$", delete_request },
}


local function find_call(method, uri)
    local call = CALLS[method .. " " .. uri]
    if call then
        return call
    end
    for _, entry in ipairs(CALLS_WITH_ID) do
        local id = entry[1] == method and match(uri, entry[2])
        if id then
            return entry[3], id
        end
    end
end


function _M.run()
    local given = (ngx.var.http_authorization or ""):match("^[Bb]earer (%S+)$")
    if not given or not same(given, token) then
        return fail(401, "This listener needs the admin token (run/admin.token).")
    end
    local call, id = find_call(ngx.req.get_method(), ngx.var.uri)
    if not call then
        return fail(404, "No such call.")
    end
    return call(id)
end


return _M
