-- What Redis does for leases, atomically and by its own clock. How much each edge may have in flight on a
-- backend, or of the concurrent requests of a key, stands in a hash of its own, edge by edge; what an edge
-- has counts only as long as it is among those that are there.

local redis = require "edge.redis"


local _M = {}

-- KEYS: the edges with the moment at which each is gone; a name that this Redis has had since it was
-- empty; the last word of any edge; a time in which nothing is lent. ARGV: this edge's name; what names of
-- its former lives begin with; milliseconds that it counts as there; a name if there is none yet; how long
-- silence may be; how long nothing is lent after it, since those that have something in flight must say so
-- first. Answers how many edges there are, the name, and whether this one was not among them.
_M.beat = redis.script([=[
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
redis.call('SET', KEYS[3], now, 'PX', 60000)
if now - last > tonumber(ARGV[5]) then
    redis.call('SET', KEYS[4], 1, 'PX', ARGV[6])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local new = redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
if new == 1 then
    for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
        if name ~= ARGV[1] and string.sub(name, 1, #ARGV[2]) == ARGV[2] then
            redis.call('ZREM', KEYS[1], name)
        end
    end
end
redis.call('SET', KEYS[2], ARGV[4], 'NX')
return { redis.call('ZCARD', KEYS[1]), redis.call('GET', KEYS[2]), new }
]=])

-- KEYS: the edges; the time in which nothing is lent; then for each thing its hash and which edges are short
-- of it, each until when. ARGV: this edge; milliseconds that it counts as there; what the lists of news begin
-- with; then four for each: what this edge has, needs more, would like beyond that, and the limit. Answers
-- what each is lent (-1: not now).
-- What is needed is lent whole or not at all; what is liked only while no other edge is short. Those
-- that have some learn that an edge is short (the name of the hash), and those that are short learn that some
-- is free (the same behind a plus).
_M.exchange = redis.script([=[
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
local me, lent = ARGV[1], {}
local there = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')) do
    there[name] = true
end
local closed = redis.call('EXISTS', KEYS[2]) == 1
local function tell(names, word)
    for _, name in ipairs(names) do
        local list = ARGV[3] .. name
        if not redis.call('LPOS', list, word) then
            if redis.call('RPUSH', list, word) > 100 then
                redis.call('LPOP', list)
            end
            redis.call('PEXPIRE', list, 5000)
        end
    end
end
local function others_of(hash)
    local all, sum, holders = redis.call('HGETALL', hash), 0, {}
    for k = 1, #all, 2 do
        if all[k] ~= me then
            if there[all[k]] then
                sum = sum + all[k + 1]
                holders[#holders + 1] = all[k]
            elseif not closed then
                redis.call('HDEL', hash, all[k])
            end
        end
    end
    return sum, holders
end
local function short_of(key)
    local found = {}
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, now, '+inf')) do
        if name ~= me and there[name] then
            found[#found + 1] = name
        end
    end
    return found
end
for i = 1, (#KEYS - 2) / 2 do
    local hash, short = KEYS[2 * i + 1], KEYS[2 * i + 2]
    local j = 4 * i
    local have, need = tonumber(ARGV[j]), tonumber(ARGV[j + 1])
    local like, limit = tonumber(ARGV[j + 2]), tonumber(ARGV[j + 3])
    local others, holders = others_of(hash)
    local wanting = short_of(short)
    local free, grant = limit - others - have, 0
    if not closed and need <= free then
        grant = need
        if like > 0 and #wanting == 0 then
            grant = math.min(need + like, math.max(free, 0))
        end
    end
    if grant < need then
        redis.call('ZADD', short, now + 300, me)
        redis.call('PEXPIRE', short, 5000)
    end
    if free < 0 then
        holders[#holders + 1] = me  -- each gives back what it has unused
    end
    if grant < need or free < 0 then
        tell(holders, hash)
    end
    if free > grant and not closed then
        tell(wanting, '+' .. hash)
    end
    if have + grant > 0 then
        redis.call('HSET', hash, me, have + grant)
        redis.call('EXPIRE', hash, 600)
    else
        redis.call('HDEL', hash, me)
    end
    lent[i] = closed and -1 or grant
end
return lent
]=])


return _M
