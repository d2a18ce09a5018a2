-- Is a text a fleet.json that the edge can serve? Pure.

local cjson = require "cjson.safe"
local fair = require "edge.fair"

local ipairs = ipairs
local pairs = pairs
local tostring = tostring
local type = type

-- Each is tried for each request.
local MAX_RULES = 256


local _M = {}


local function check_backend(id, backend, models)
    if type(backend) ~= "table" or type(backend.host) ~= "string" or type(backend.port) ~= "number"
        or type(backend.served) ~= "table" or type(backend.name) ~= "string"
        or type(backend.addresses) ~= "table" or type(backend.scheme) ~= "string"
    then
        return "backend " .. id .. " needs scheme, host, port, addresses, name and served"
    end
    if backend.limit ~= nil and (type(backend.limit) ~= "number" or backend.limit < 1) then
        return "the limit of backend " .. id .. " is not a number from 1"
    end
    for _, key in ipairs({ "weight", "tier" }) do
        local value = backend[key]
        if value ~= nil and (type(value) ~= "number" or value < 1) then
            return "the " .. key .. " of backend " .. id .. " is not a number from 1"
        end
    end
    if backend.pool ~= nil and type(backend.pool) ~= "string" then
        return "the pool of backend " .. id .. " is no name"
    end
    if not models[backend.model] then
        return "backend " .. id .. " names the unknown model " .. tostring(backend.model)
    end
end


local function check_model(id, model, models, backends)
    if type(model) ~= "table" or type(model.backends) ~= "table" or type(model.names) ~= "table"
        or type(model.connect_ms) ~= "number" or type(model.send_ms) ~= "number"
        or type(model.read_ms) ~= "number" or type(model.policy) ~= "string"
        or type(model.max_waiting) ~= "number" or type(model.wait_ms) ~= "number"
    then
        return "model " .. id .. " needs policy, names, backends, connect_ms, send_ms, read_ms,"
            .. " max_waiting and wait_ms"
    end
    for _, backend_id in ipairs(model.backends) do
        if not backends[backend_id] then
            return "model " .. id .. " names the unknown backend " .. tostring(backend_id)
        end
    end
    if model.limits ~= nil and type(model.limits) ~= "table" then
        return "the limits of model " .. id .. " are no object"
    end
    for name, limit in pairs(model.limits or {}) do
        if type(limit) ~= "number" or limit < 1 then
            return "the limit " .. name .. " of model " .. id .. " is not a number from 1"
        end
    end
    if model.fallback ~= nil and type(model.fallback) ~= "table" then
        return "the fallback of model " .. id .. " is not a list"
    end
    for _, other in ipairs(model.fallback or {}) do
        if not models[other] then
            return "model " .. id .. " falls back to the unknown model " .. tostring(other)
        end
    end
end


local function is_text(value)
    return value == nil or type(value) == "string"
end


local function check_rule(number, rule, names)
    local header = type(rule) == "table" and rule.header
    if type(rule) ~= "table" or not (is_text(rule.path) and is_text(rule.host) and is_text(rule.pool)
        and is_text(rule.policy)) or rule.path and not rule.path:find("^/.*[^/]$")
        or rule.priority ~= nil and not fair.NUMBERS[rule.priority]
    then
        return "rule " .. number .. " may have path (which starts with / and ends without), host, header,"
            .. " model, pool, policy and priority (high, normal or low)"
    end
    if header and (type(header) ~= "table" or type(header.name) ~= "string"
        or type(header.value) ~= "string")
    then
        return "the header of rule " .. number .. " needs name and value"
    end
    if not (rule.path or rule.host or header) then
        return "rule " .. number .. " has no condition"
    end
    if rule.model ~= nil and not names[rule.model] then
        return "rule " .. number .. " names the unknown model " .. tostring(rule.model)
    end
end


local function check_rules(rules, names)
    if type(rules) ~= "table" or #rules > MAX_RULES then
        return "rules is no list of at most " .. MAX_RULES
    end
    for number, rule in ipairs(rules) do
        local problem = check_rule(number, rule, names)
        if problem then
            return problem
        end
    end
end


-- nil when the text is a fleet that this edge can serve, else what is wrong with it.
function _M.check(text)
    local given, err = cjson.decode(text)
    if type(given) ~= "table" then
        return "fleet.json is not a JSON object: " .. (err or "another value")
    end
    if type(given.version) ~= "number" or type(given.models) ~= "table"
        or type(given.backends) ~= "table" or type(given.names) ~= "table"
    then
        return "fleet.json needs version, models, backends and names"
    end
    if given.published ~= nil and type(given.published) ~= "number" then
        return "published is no number"
    end
    if given.count_usage ~= nil and type(given.count_usage) ~= "boolean" then
        return "count_usage is not true or false"
    end
    if given.keys ~= nil and type(given.keys) ~= "boolean" then
        return "keys is neither true nor false"
    end
    for id, backend in pairs(given.backends) do
        local problem = check_backend(id, backend, given.models)
        if problem then
            return problem
        end
    end
    for id, model in pairs(given.models) do
        local problem = check_model(id, model, given.models, given.backends)
        if problem then
            return problem
        end
    end
    for name, model in pairs(given.names) do
        if not given.models[model] then
            return "the name " .. name .. " stands for the unknown model " .. tostring(model)
        end
    end
    return given.rules ~= nil and check_rules(given.rules, given.names) or nil
end


return _M
