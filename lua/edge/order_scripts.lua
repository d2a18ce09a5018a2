-- What Redis does for the order of those that wait in several edges (order.lua), atomically.

local redis = require "edge.redis"


local _M = {}

-- KEYS: the tag served last in a class of a line; where the tickets of a key end; how many tickets the line
-- has had. ARGV: the first and the last of these as this edge knows them, for a Redis that has begun anew;
-- how far a key's tickets are apart; how long it is kept; where they end as far as this edge knows. Answers
-- tag, end and number (see fair.tag).
_M.ticket = redis.script([[
local virtual = tonumber(redis.call('GET', KEYS[1]) or 0)
local finish = tonumber(redis.call('GET', KEYS[2]) or ARGV[5])
local tag = math.max(virtual, finish, tonumber(ARGV[1]))
local ends = string.format('%.14g', tag + ARGV[3])
redis.call('SET', KEYS[2], ends, 'EX', ARGV[4])
local number = redis.call('INCR', KEYS[3])
if number <= tonumber(ARGV[2]) then
    number = ARGV[2] + 1
    redis.call('SET', KEYS[3], number)
end
redis.call('EXPIRE', KEYS[3], ARGV[4])
return { string.format('%.14g', tag), ends, number }
]])

-- KEYS: five for each line: the first tickets of all workers of all edges, the turn, the tags served last
-- in each class. ARGV: what fields of this edge begin with; this worker's field; milliseconds that its
-- tickets count; how long the rest is kept (s); then five for each line: this worker's first tickets (tag and
-- number for each class, '-' for none) or nothing, how many were served, the tags served last.
-- Answers ten for each line: the turn, the tags served last, and of the first tickets of other edges the
-- first of each class, tag and number ('' when there is none).
_M.sync = redis.script([=[
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local out = {}
local function firsts(hash)
    local best = {}
    local all = redis.call('HGETALL', hash)
    for k = 1, #all, 2 do
        if string.sub(all[k], 1, #ARGV[1]) ~= ARGV[1] then
            local words = {}
            for word in string.gmatch(all[k + 1], '%S+') do
                words[#words + 1] = word
            end
            if tonumber(words[1]) < now then
                redis.call('HDEL', hash, all[k])
            else
                for class = 1, 3 do
                    local tag, number = tonumber(words[2 * class]), tonumber(words[2 * class + 1])
                    local known = best[class]
                    if tag and (not known or tag < known[1] or tag == known[1] and number < known[2]) then
                        best[class] = { tag, number, words[2 * class] }
                    end
                end
            end
        end
    end
    for class = 1, 3 do
        out[#out + 1] = best[class] and best[class][3] or ''
        out[#out + 1] = best[class] and best[class][2] or ''
    end
end
for i = 1, #KEYS / 5 do
    local k, a = 5 * i - 4, 5 * i
    if ARGV[a] == '' then
        redis.call('HDEL', KEYS[k], ARGV[2])
    else
        redis.call('HSET', KEYS[k], ARGV[2], (now + ARGV[3]) .. ' ' .. ARGV[a])
        redis.call('EXPIRE', KEYS[k], ARGV[4])
    end
    if ARGV[a + 1] ~= '0' then
        redis.call('INCRBY', KEYS[k + 1], ARGV[a + 1])
        redis.call('EXPIRE', KEYS[k + 1], ARGV[4])
    end
    out[#out + 1] = redis.call('GET', KEYS[k + 1]) or '0'
    for class = 1, 3 do
        local key, mine = KEYS[k + 1 + class], ARGV[a + 1 + class]
        local served = redis.call('GET', key) or '0'
        if tonumber(mine) > tonumber(served) then
            served = mine
            redis.call('SET', key, served, 'EX', ARGV[4])
        end
        out[#out + 1] = served
    end
    firsts(KEYS[k])
end
return out
]=])

-- KEYS: where keys' tickets end. ARGV: by how much each ends earlier, since a ticket has left unserved.
_M.refund = redis.script([[
for i = 1, #KEYS do
    local ends = redis.call('GET', KEYS[i])
    if ends then
        redis.call('SET', KEYS[i], string.format('%.14g', ends - ARGV[i]), 'KEEPTTL')
    end
end
return 1
]])


return _M
