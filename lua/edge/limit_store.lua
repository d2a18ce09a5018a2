-- What limits have counted so far, in memory shared by the workers. Each takes or refuses exactly,
-- whatever other workers do at the same time, and never yields. limit_redis.lua has the same functions
-- for edges that share a Redis.
--
-- What a request takes is one table: rules, tokens (as estimated), at (when), share (what it costs here:
-- 1, or more when this edge counts for others too); here it gets a mark for each rule, places (how many
-- of its rules for concurrency hold one), and refused and wait when a rule had no room.
--
-- A rate is one number: the moment at which everything taken so far will have been given back. Taking
-- moves it on by `cost × rule.each` seconds; up to a minute ahead of now is allowed. So a quiet minute
-- saves up one minute's worth, never more.

local counter = require "edge.counter"
local limit_rules = require "edge.limit_rules"
local slots = require "edge.slots"

local add = counter.add
local date = os.date
local find = string.find
local floor = math.floor
local log = ngx.log
local ERR = ngx.ERR
local max = math.max
local min = math.min
local time_of = os.time

local dict = ngx.shared.edge_limits
-- What is spent of budgets: kept over restarts (budgets.lua), so by itself.
local spent_dict = ngx.shared.edge_budgets

local MINUTE = limit_rules.MINUTE
-- A lock is held for a microsecond; longer only by a worker that was killed in between. Then it is taken
-- from it, after some ten milliseconds.
local SPINS = 100000
local PERIOD = { day = "!%Y-%m-%d", month = "!%Y-%m" }
-- A finished period is kept a little longer, for requests that end after it.
local KEEP = { day = 2 * 86400, month = 33 * 86400 }


local _M = {}


-- What cannot be counted is let through: a full dictionary must not stop the fleet.
local function count(in_dict, key, value, ttl)
    return add(in_dict, key, value, ttl) or value
end


-- A counter, not a key that comes and goes: those cost several times as much, and a limit that is not
-- reached takes the lock for nearly every request.
local function lock(name)
    for _ = 1, SPINS do
        if count(dict, name, 1) == 1 then
            return
        end
        dict:incr(name, -1)
    end
    log(ERR, "edge: limits: took the lock ", name, " from a worker that is gone")
    dict:safe_set(name, 1)
end


-- A bucket that was full: nothing is saved up beyond a minute. Two workers must not both move the
-- moment up to now.
local function take_first(rule, step, time)
    lock(rule.lock)
    local at = dict:get(rule.name) or 0
    local mark = count(dict, rule.name, max(time - at, 0) + step)
    dict:incr(rule.lock, -1)
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


-- When the period in which `time` lies began and ends (UTC).
local function bounds_of(period, time)
    local t = date("!*t", time)
    local day = floor(time) - t.hour * 3600 - t.min * 60 - t.sec
    if period == "day" then
        return day, day + 86400
    end
    -- Both ends as local times: what the zone adds falls out.
    local here = time_of({ year = t.year, month = t.month, day = 1, hour = 12 })
    local after = time_of({ year = t.year, month = t.month + 1, day = 1, hour = 12 })
    local first = day - (t.day - 1) * 86400
    return first, first + floor((after - here) / 86400 + 0.5) * 86400
end


-- The key of the period in which `time` lies. Rules keep it: dates cost more than all the rest.
local function budget_key(rule, time)
    if not rule.key or time >= rule.ends or time < rule.begins then
        rule.begins, rule.ends = bounds_of(rule.period, time)
        rule.key = rule.name .. date(PERIOD[rule.period], time)
    end
    return rule.key
end


-- Seconds until the period of a budget ends.
local function left_of(rule, time)
    budget_key(rule, time)
    return rule.ends - time
end


local function take_budget(rule, cost, time)
    local key = budget_key(rule, time)
    local used = count(spent_dict, key, cost, KEEP[rule.period])
    if used > rule.limit then
        count(spent_dict, key, -cost)
        return nil, left_of(rule, time)
    end
    return used
end


-- What `amount` of a rule costs when this edge has a share of the limit only. What fits the whole
-- limit must be able to pass.
local function cost_of(rule, amount, share)
    return share == 1 and amount or min(amount * share, rule.limit)
end


-- Gives back `amount` of what was taken at `taken_at`; a negative amount takes more. What a rate has
-- given back by itself meanwhile is not given back again.
local function give_back(rule, mark, amount, taken_at, time)
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


-- Takes everything of the first `n` rules back.
local function undo(taken, n)
    for i = 1, n do
        local rule = taken.rules[i]
        if rule.kind == "concurrent" then
            slots.release(rule, 1)

        else
            give_back(rule, taken[i], cost_of(rule, rule.unit == "tokens" and taken.tokens or 1, taken.share),
                      taken.at, taken.at)
        end
    end
    taken.places = 0
end


-- Takes what a request needs of all its rules, or nothing: then taken.refused is the number of the one
-- without room, and taken.wait the seconds after which there may be some.
function _M.reserve(taken)
    local rules, share, time = taken.rules, taken.share, taken.at
    for i = 1, #rules do
        local rule = rules[i]
        local mark, wait
        if rule.kind == "concurrent" then
            mark, wait = slots.take(rule, 1), 0
            taken.places = taken.places + (mark and 1 or 0)

        else
            local cost = cost_of(rule, rule.unit == "tokens" and taken.tokens or 1, share)
            mark, wait = (rule.kind == "rate" and take_rate or take_budget)(rule, cost, time)
        end
        if not mark then
            undo(taken, i - 1)
            taken.refused, taken.wait = i, wait
            return
        end
        taken[i] = mark
    end
end


-- Gives back the places among the concurrent requests.
function _M.release(taken)
    if taken.places == 0 then
        return
    end
    taken.places = 0
    local rules = taken.rules
    for i = 1, #rules do
        if rules[i].kind == "concurrent" then
            slots.release(rules[i], 1)
        end
    end
end


-- Corrects what was taken by what was used: tokens; `free`: not even the request counts.
function _M.settle(taken, used, free, time)
    local rules, share = taken.rules, taken.share
    for i = 1, #rules do
        local rule = rules[i]
        if rule.kind ~= "concurrent" then
            local amount
            if rule.unit == "tokens" then
                amount = cost_of(rule, taken.tokens, share) - used * share

            else
                amount = free and cost_of(rule, 1, share) or 0
            end
            if amount ~= 0 then
                give_back(rule, taken[i], amount, taken.at, time)
            end
        end
    end
end


-- How long the budget of this key is kept, in seconds.
function _M.keep_of(key)
    return KEEP[find(key, "%d%d%d%d%-%d%d%-%d%d$") and "day" or "month"]
end


-- What was spent before a restart, by the key that it was counted under.
function _M.restore(key, tokens)
    count(spent_dict, key, tokens, _M.keep_of(key))
end


-- How much is left of a request's rule, and in how many seconds all of it will be.
function _M.left(taken, i, time)
    local rule, share = taken.rules[i], taken.share
    -- What was given back because another rule refused is in no mark.
    local mark = not taken.refused and taken[i]
    if rule.kind == "budget" then
        local used = mark or spent_dict:get(budget_key(rule, time)) or 0
        return floor(max(rule.limit - used, 0) / share), left_of(rule, time)
    end
    local ahead = max((mark or dict:get(rule.name) or 0) - time, 0)
    return max(floor((MINUTE - ahead) / (rule.each * share) + 1e-6), 0), ahead
end


-- What limit_redis.lua needs of budgets: the key of the period in which `time` lies, how long it is
-- kept, and in how many seconds it ends.
_M.budget_key = budget_key
_M.left_of = left_of
_M.KEEP = KEEP


return _M
