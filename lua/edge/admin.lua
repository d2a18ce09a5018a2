-- The admin listener: loopback, with a token. Never the public port.

local cjson = require "cjson.safe"
local body = require "edge.body"
local fleet = require "edge.fleet"
local metrics = require "edge.metrics"
local probe = require "edge.probe"
local promtext = require "edge.promtext"
local slots = require "edge.slots"
local workers = require "edge.workers"

local ngx = ngx
local bxor, bor = bit.bxor, bit.bor
local byte = string.byte
local concat = table.concat
local ipairs = ipairs


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
    local seen = probe.describe(backend)
    return '{"id":' .. cjson.encode(backend.id)
        .. ',"model":' .. cjson.encode(backend.model)
        .. ',"address":' .. cjson.encode(backend.host .. ":" .. backend.port)
        .. ',"scheme":' .. cjson.encode(backend.scheme)
        .. ',"state":' .. cjson.encode(seen.state)
        .. ',"reason":' .. cjson.encode(seen.reason)
        .. ',"since":' .. cjson.encode(seen.since or cjson.null)
        .. ',"in_flight":' .. slots.in_flight(backend)
        .. ',"requests":' .. (requests[backend.id] or 0)
        .. ',"reported":' .. array(seen.reported, cjson.encode) .. "}"
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
        .. ',"workers":' .. array(workers.list(), cjson.encode)
        .. ',"models":' .. array(current.list, describe_model)
        .. ',"backends":' .. array(backends, function(backend)
            return describe_backend(backend, requests)
        end) .. "}")
end


local STATES = { "starting", "ready", "down" }


-- Gauges are read when asked for: nothing stored can go stale.
local function write_gauges(out)
    local current = fleet.current()
    promtext.family(out, "signalbox_in_flight", "gauge", "Requests in flight by backend.")
    for _, model in ipairs(current.list) do
        for _, backend in ipairs(model.backends) do
            promtext.sample(out, "signalbox_in_flight",
                            promtext.labels("model", model.id, "backend", backend.id),
                            slots.in_flight(backend))
        end
    end
    promtext.family(out, "signalbox_backend_state", "gauge", "1 for the state that a backend is in.")
    for _, model in ipairs(current.list) do
        for _, backend in ipairs(model.backends) do
            local state = probe.describe(backend).state
            for _, name in ipairs(STATES) do
                promtext.sample(out, "signalbox_backend_state",
                                promtext.labels("model", model.id, "backend", backend.id,
                                                "state", name),
                                state == name and 1 or 0)
            end
        end
    end
    promtext.family(out, "signalbox_fleet_version", "gauge", "Version of fleet.json that is served.")
    promtext.sample(out, "signalbox_fleet_version", "", current.version)
end


local function get_metrics()
    local out = {}
    metrics.write(out)
    write_gauges(out)
    return reply(200, concat(out), "text/plain; version=0.0.4; charset=utf-8")
end


local function put_fleet()
    ngx.req.read_body()
    local text, err = body.text()
    if not text then
        return fail(500, err)
    end
    local version
    version, err = fleet.put(text)
    if not version then
        return fail(400, err)
    end
    return reply(200, cjson.encode({ version = version }))
end


local CALLS = {
    ["GET /state"] = get_state,
    ["GET /metrics"] = get_metrics,
    ["PUT /fleet"] = put_fleet,
}


function _M.run()
    local given = (ngx.var.http_authorization or ""):match("^[Bb]earer (%S+)$")
    if not given or not same(given, token) then
        return fail(401, "This listener needs the admin token (run/admin.token).")
    end
    local call = CALLS[ngx.req.get_method() .. " " .. ngx.var.uri]
    if not call then
        return fail(404, "No such call.")
    end
    return call()
end


return _M
