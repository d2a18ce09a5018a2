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
-- in each class. ARGV: this edge; this worker; milliseconds that its tickets count; how long the rest is kept
-- (s); what the lists of news begin with; then six for each line: its name, this worker's first tickets (tag
-- and number of three for each class, '-' for none) or nothing, how many were served, the tags served last.
-- Answers a text for each line: the clock, the turn, the tags served last, and of the first tickets of other
-- edges the first and the third of each class, tag and number. Other edges that wait in a line that has
-- changed get the same as they see it, with the name of the line, as news.
_M.sync = redis.script([=[
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = string.format('%.0f', time[1] * 1000000 + time[2])
local mine, out = ARGV[1] .. '/' .. ARGV[2], {}
local function show(hash, words, turns)
    local old = redis.call('HGET', hash, mine)
    if words == '' then
        redis.call('HDEL', hash, mine)
    else
        redis.call('HSET', hash, mine, string.format('%.0f %s', now + ARGV[3], words))
        redis.call('EXPIRE', hash, ARGV[4])
    end
    return turns ~= '0' or (old and string.match(old, '^%S+ (.*)$') or '') ~= words
end
local function shown(hash)
    local found, all = {}, redis.call('HGETALL', hash)
    for k = 1, #all, 2 do
        local words = {}
        for word in string.gmatch(all[k + 1], '%S+') do
            words[#words + 1] = word
        end
        if tonumber(words[1]) < now then
            redis.call('HDEL', hash, all[k])
        else
            words.edge = string.match(all[k], '^(.*)/')
            found[#found + 1] = words
        end
    end
    return found
end
local function before(one, other)
    return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
end
local function others(found, edge)
    local text = {}
    for class = 1, 3 do
        local all = {}
        for _, words in ipairs(found) do
            for k = 6 * class - 4, words.edge ~= edge and 6 * class or 0, 2 do
                if words[k] ~= '-' then
                    local pair = words[k] .. ' ' .. words[k + 1]
                    all[#all + 1] = { tonumber(words[k]), tonumber(words[k + 1]), pair }
                end
            end
        end
        table.sort(all, before)
        text[class] = ' ' .. (all[1] and all[1][3] or '- -') .. ' ' .. (all[3] and all[3][3] or '- -')
    end
    return table.concat(text)
end
local function tell(found, line, name)
    local told = { [ARGV[1]] = true }
    for _, words in ipairs(found) do
        local list = ARGV[5] .. words.edge
        if not told[words.edge] then
            told[words.edge] = true
            if redis.call('RPUSH', list, '=' .. line .. others(found, words.edge) .. ' ' .. name) > 100 then
                redis.call('LPOP', list)
            end
            redis.call('PEXPIRE', list, 5000)
        end
    end
end
for i = 1, #KEYS / 5 do
    local k, a = 5 * i - 4, 6 * i
    local changed = show(KEYS[k], ARGV[a + 1], ARGV[a + 2])
    if ARGV[a + 2] ~= '0' then
        redis.call('INCRBY', KEYS[k + 1], ARGV[a + 2])
        redis.call('EXPIRE', KEYS[k + 1], ARGV[4])
    end
    local line = { stamp, redis.call('GET', KEYS[k + 1]) or '0' }
    for class = 1, 3 do
        local key, served = KEYS[k + 1 + class], ARGV[a + 2 + class]
        local known = redis.call('GET', key) or '0'
        if tonumber(served) > tonumber(known) then
            known = served
            redis.call('SET', key, served, 'EX', ARGV[4])
        end
        line[#line + 1] = known
    end
    line = table.concat(line, ' ')
    local found = shown(KEYS[k])
    out[i] = line .. others(found, ARGV[1])
    if changed then
        tell(found, line, ARGV[a])
    end
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
