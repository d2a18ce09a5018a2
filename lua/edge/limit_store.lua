-- What limits have counted so far, in memory shared by the workers. Each takes or refuses exactly,
-- whatever other workers do at the same time, and never yields.
--
-- A rate is one number: the moment at which everything taken so far will have been given back. Taking
-- moves it on by `cost × rule.each` seconds; up to a minute ahead of now is allowed. So a quiet minute
-- saves up one minute's worth, never more.

local limit_rules = require "edge.limit_rules"

local date = os.date
local find = string.find
local log = ngx.log
local ERR = ngx.ERR
local max = math.max
local min = math.min
local time_of = os.time

local dict = ngx.shared.edge_limits
-- What is spent of budgets: kept over restarts (budgets.lua), so by itself.
local spent_dict = ngx.shared.edge_budgets

local MINUTE = limit_rules.MINUTE
-- A lock is held for a microsecond; longer only by a worker that was killed in between (seconds).
local LOCK_TTL = 0.05
local SPINS = 200000
local PERIOD = { day = "!%Y-%m-%d", month = "!%Y-%m" }
-- A finished period is kept a little longer, for requests that end after it.
local KEEP = { day = 2 * 86400, month = 33 * 86400 }


local _M = {}


-- Not incr with an initial value: that would evict another count when the dictionary is full. What
-- cannot be counted is let through: a full dictionary must not stop the fleet.
local function count(in_dict, key, value, ttl)
    local new, err = in_dict:incr(key, value)
    if not new and err == "not found" then
        in_dict:safe_add(key, 0, ttl or 0)
        new, err = in_dict:incr(key, value)
    end
    if not new then
        log(ERR, "edge: limits: could not count ", key, ": ", err)
    end
    return new or value
end


-- A bucket that was full: nothing is saved up beyond a minute. Two workers must not both move the
-- moment up to now.
local function take_first(rule, step, time)
    local lock = rule.lock
    for _ = 1, SPINS do
        if dict:add(lock, true, LOCK_TTL) then
            break
        end
    end
    local at = dict:get(rule.name) or 0
    local mark = count(dict, rule.name, max(time - at, 0) + step)
    dict:delete(lock)
    return mark
end


-- The moment at which this request will have been given back; nil and the seconds to wait when there
-- is no room.
local function take_rate(rule, cost, time)
    local step = cost * rule.each
    local at = dict:get(rule.name)
    if not at or at < time then
        return take_first(rule, step, time)
    end
    at = count(dict, rule.name, step)
    if at > time + MINUTE then
        count(dict, rule.name, -step)
        return nil, at - time - MINUTE
    end
    return at
end


-- The key of the period in which `time` lies.
local function budget_key(rule, time)
    return rule.name .. date(PERIOD[rule.period], time)
end


-- Seconds until the period ends (UTC).
local function left_of(period, time)
    local t = date("!*t", time)
    local into_day = t.hour * 3600 + t.min * 60 + t.sec
    if period == "day" then
        return 86400 - into_day
    end
    -- Both ends as local times: what the zone adds falls out.
    local here = time_of({ year = t.year, month = t.month, day = t.day, hour = 12 })
    local first = time_of({ year = t.year, month = t.month + 1, day = 1, hour = 12 })
    return math.floor((first - here) / 86400 + 0.5) * 86400 - into_day
end


local function take_budget(rule, cost, time)
    local key = budget_key(rule, time)
    local used = count(spent_dict, key, cost, KEEP[rule.period])
    if used > rule.limit then
        count(spent_dict, key, -cost)
        return nil, left_of(rule.period, time)
    end
    return used
end


-- Takes `cost` for a rule. Returns a mark, which give_back needs, or nil and the seconds after which
-- there may be room.
function _M.take(rule, cost, time)
    return (rule.kind == "rate" and take_rate or take_budget)(rule, cost, time)
end


-- Gives back `amount` of what was taken at `taken_at`; a negative amount takes more. What a rate has
-- given back by itself meanwhile is not given back again.
function _M.give_back(rule, mark, amount, taken_at, time)
    if rule.kind == "budget" then
        count(spent_dict, budget_key(rule, taken_at), -amount)
        return
    end
    local step = amount * rule.each
    if amount > 0 then
        step = min(step, mark - time)
        if step > 0 then
            count(dict, rule.name, -step)
        end
        return
    end
    local at = dict:get(rule.name)
    if not at or at < time then
        take_first(rule, -step, time)

    else
        count(dict, rule.name, -step)
    end
end


-- What was spent before a restart, by the key that it was counted under.
function _M.restore(key, tokens)
    local period = find(key, "%d%d%d%d%-%d%d%-%d%d$") and "day" or "month"
    count(spent_dict, key, tokens, KEEP[period])
end


-- How much of a rule is left, and in how many seconds all of it will be.
function _M.left(rule, time)
    if rule.kind == "budget" then
        local used = spent_dict:get(budget_key(rule, time)) or 0
        return max(rule.limit - used, 0), left_of(rule.period, time)
    end
    local ahead = max((dict:get(rule.name) or 0) - time, 0)
    return max(math.floor((MINUTE - ahead) / rule.each + 1e-6), 0), ahead
end


return _M
