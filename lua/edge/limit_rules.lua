-- From what keys.yaml and fleet.yaml allow to the list of rules that one request must pass. Pure.

local ipairs = ipairs


local _M = {
    MINUTE = 60,
}

local MINUTE = _M.MINUTE


local function rate(unit, limit, scope)
    return {
        kind = "rate",
        unit = unit,
        limit = limit,
        each = MINUTE / limit,   -- seconds in which one is given back
        name = "rate/" .. unit .. "/" .. scope.id,
        lock = "lock/" .. unit .. "/" .. scope.id,
        who = scope.who,
    }
end


local function budget(period, limit, scope)
    return {
        kind = "budget",
        unit = "tokens",
        limit = limit,
        period = period,
        name = "budget/" .. scope.id .. "/",
        who = scope.who,
    }
end


-- Counted by slots.lua, which gives back what a dead worker held.
local function concurrent(limit, scope, pid)
    local id = "limit/" .. scope.id
    return {
        kind = "concurrent",
        limit = limit,
        count_id = id,
        pid = pid,
        own_key = "own:" .. pid .. ":" .. id,
        total_key = "total:" .. id,
        who = scope.who,
    }
end


-- The rules of one scope, appended to the list. Concurrency first: it costs nothing to give back.
local function add(rules, limits, scope, pid)
    if limits.concurrent then
        rules[#rules + 1] = concurrent(limits.concurrent, scope, pid)
    end
    if limits.requests_per_minute then
        rules[#rules + 1] = rate("requests", limits.requests_per_minute, scope)
    end
    if limits.tokens_per_minute then
        rules[#rules + 1] = rate("tokens", limits.tokens_per_minute, scope)
    end
    for _, period in ipairs({ "day", "month" }) do
        local limit = limits["tokens_per_" .. period]
        if limit then
            rules[#rules + 1] = budget(period, limit, scope)
        end
    end
end


-- The rules for requests of a key (nil: no keys are asked for) to a model, in the order in which they
-- are asked; nil when there are none. `rules.tokens`: whether any counts tokens.
function _M.build(key, model_id, model_limits, pid)
    local rules = {}
    local limits = key and key.limits
    if limits then
        local who = "the key '" .. key.name .. "'"
        local scope = "key/" .. key.name
        add(rules, limits, { id = scope, who = who }, pid)
        local of_model = limits.models and limits.models[model_id]
        if of_model then
            add(rules, of_model, {
                id = scope .. "/model/" .. model_id,
                who = who .. " on model '" .. model_id .. "'",
            }, pid)
        end
    end
    if model_limits then
        add(rules, model_limits, { id = "model/" .. model_id, who = "model '" .. model_id .. "'" }, pid)
    end
    for _, rule in ipairs(rules) do
        rules.tokens = rules.tokens or rule.unit == "tokens"
    end
    return rules[1] and rules or nil
end


return _M
