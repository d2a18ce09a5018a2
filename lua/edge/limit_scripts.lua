-- What Redis does for limits, atomically and by its own clock: the arithmetic of limit_store.lua. A rate
-- is the moment at which everything taken will have been given back; a budget is what is spent.

local redis = require "edge.redis"


local _M = {}

-- KEYS: a rule each. ARGV: three for each: how many seconds it moves on (rates) or tokens (budgets); how
-- far ahead it may be, or the limit; 0 for a rate, for a budget how long it is kept.
-- Takes all or nothing. Answers the number of the rule without room (0: taken), the seconds to wait, the
-- time, and where each rule stands then.
_M.reserve = redis.script([[
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local found = redis.call('MGET', unpack(KEYS))
local was, new, refused, wait = {}, {}, 0, 0
for i = 1, #KEYS do
    local j = 3 * i - 2
    local step, most, keep = tonumber(ARGV[j]), tonumber(ARGV[j + 1]), tonumber(ARGV[j + 2])
    local at = tonumber(found[i] or 0)
    if keep == 0 and at < now then
        at = now
    end
    was[i], new[i] = at, at + step
    local over = new[i] - most - (keep == 0 and now or 0)
    if over > 1e-6 and refused == 0 then
        refused, wait = i, over
    end
end
local reply = { refused, string.format('%.6f', wait), string.format('%.6f', now) }
for i = 1, #KEYS do
    local keep = tonumber(ARGV[3 * i])
    local value = string.format(keep == 0 and '%.6f' or '%.0f', refused == 0 and new[i] or was[i])
    if refused == 0 then
        if keep == 0 then
            redis.call('SET', KEYS[i], value, 'PX', math.ceil((new[i] - now) * 1000) + 1000)
        else
            redis.call('SET', KEYS[i], value, 'EX', keep)
        end
    end
    reply[3 + i] = value
end
return reply
]])

-- KEYS: a name for this batch, then a rule each. ARGV: three for each rule: how much to give back (less
-- than nothing: to take), the mark of a rate (what it has given back by itself since is not given again),
-- 0 for a rate or how long a budget is kept. A batch whose answer was lost may be sent again.
_M.settle = redis.script([[
if not redis.call('SET', KEYS[1], 1, 'NX', 'EX', 600) then
    return 0
end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
for i = 2, #KEYS do
    local j = 3 * i - 5
    local step, mark, keep = tonumber(ARGV[j]), tonumber(ARGV[j + 1]), tonumber(ARGV[j + 2])
    local at = tonumber(redis.call('GET', KEYS[i]) or nil)
    if keep > 0 then
        redis.call('SET', KEYS[i], string.format('%.0f', math.max((at or 0) - step, 0)), 'EX', keep)
    else
        if step > 0 then
            step = math.min(step, mark - now)
        elseif not at or at < now then
            at = now
        end
        if at and (step < 0 or step > 0 and at > now) then
            at = at - step
            local ttl = math.max(math.ceil((at - now) * 1000), 0) + 1000
            redis.call('SET', KEYS[i], string.format('%.6f', at), 'PX', ttl)
        end
    end
end
return 1
]])

-- What an edge knows of budgets, for a Redis that has begun anew. KEYS: budgets; ARGV: two for each: what
-- is spent, how long it is kept.
_M.remind = redis.script([[
for i = 1, #KEYS do
    local spent = tonumber(ARGV[2 * i - 1])
    if spent > tonumber(redis.call('GET', KEYS[i]) or 0) then
        redis.call('SET', KEYS[i], string.format('%.0f', spent), 'EX', ARGV[2 * i])
    end
end
return 1
]])


return _M
