-- Which rule of the fleet a request falls under, and what it may see then. Pure.

local byte = string.byte
local find = string.find
local gsub = string.gsub
local ipairs = ipairs
local lower = string.lower
local sub = string.sub

local SLASH = 47


local _M = {}


local function prepare_one(given, number)
    local host = given.host and lower(given.host) or false
    local wild = host and find(host, "*.", 1, true) == 1
    local header = given.header
    return {
        number = number,
        path = given.path or false,
        host = not wild and host,
        suffix = wild and sub(host, 2),
        header = header and "http_" .. gsub(lower(header.name), "-", "_") or false,
        value = header and header.value or false,
        model = given.model or false,
        pool = given.pool or false,
        policy = given.policy or false,
        priority = given.priority,
    }
end


-- The rules of a fleet.json as `find` takes them; false when there are none.
function _M.prepare(given)
    local rules = {}
    for i, rule in ipairs(given) do
        rules[i] = prepare_one(rule, i)
    end
    return rules[1] and rules or false
end


-- /team-a and what is below it, not /team-ab.
local function is_under(uri, path)
    local after = byte(uri, #path + 1)
    return (after == SLASH or after == nil) and sub(uri, 1, #path) == path
end


local function is_host(host, rule)
    local suffix = rule.suffix
    return host == rule.host or suffix and #host > #suffix and sub(host, -#suffix) == suffix
end


-- The first rule that a request matches, or nil. `var` has nginx's variables: uri (normalised, so
-- neither "..", "//" nor "%2F" hides a path), host (lower case, without port) and http_NAME.
function _M.find(rules, var)
    local uri = var.uri or ""
    local host, header, value
    for i = 1, #rules do
        local rule = rules[i]
        local matches = not rule.path or is_under(uri, rule.path)
        if matches and (rule.host or rule.suffix) then
            host = host or var.host or ""
            matches = is_host(host, rule)
        end
        if matches and rule.header then
            if header ~= rule.header then
                header = rule.header
                value = var[header]
            end
            matches = value == rule.value
        end
        if matches then
            return rule
        end
    end
end


-- Notes in a request's state which rule it falls under. Returns its path as the API knows it.
function _M.follow(state, rules, var)
    local uri = var.uri
    local rule = _M.find(rules, var)
    if not rule then
        return uri
    end
    state.rule = rule
    if not rule.path then
        return uri
    end
    local path = sub(uri, #rule.path + 1)
    state.path = path ~= "" and path or "/"
    return state.path
end


-- Those backends of a model that a request under `rule` (false: none) may see: the model itself, or
-- one of its pools; nil when it has no such pool.
function _M.scope(model, rule)
    local pool = rule and rule.pool
    if pool then
        return model.pools[pool]
    end
    return model
end


-- Whether a request under `rule` may ask for a model by itself: false when the rule names another.
function _M.names(rule, fleet, model)
    return not rule or not rule.model or fleet.names[rule.model] == model.id
end


local function has(list, wanted)
    for _, value in ipairs(list or {}) do
        if value == wanted then
            return true
        end
    end
    return false
end


-- Whether a request under `rule` may see a backend, for example as the one that made a response: of the
-- rule's pool, and of its model or one that may serve instead.
function _M.sees(rule, fleet, backend)
    if not rule then
        return true
    end
    if rule.pool and backend.pool ~= rule.pool then
        return false
    end
    local model = fleet.models[fleet.names[rule.model]]
    return not model or backend.model == model.id or has(model.fallback, backend.model)
end


return _M
