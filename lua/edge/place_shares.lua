-- How many requests of one key, and how many in all, wait in the other edges that share a Redis: a key's part
-- of the places is one over all edges. Each edge tells its own counts soon after they have changed, and again
-- now and then; what it does not repeat is forgotten. Told too late by some milliseconds, a key gets some
-- places more than its part, but all keys together never more than there are (places.lua).

local redis = require "edge.redis"
local semaphore = require "ngx.semaphore"
local shared_state = require "edge.shared_state"
local slots = require "edge.slots"

local log = ngx.log
local min = math.min
local next, pairs = next, pairs
local sleep = ngx.sleep
local timer_at = ngx.timer.at
local ERR = ngx.ERR

-- Seconds: from a change until it is told, between two words in any case, and that a count is kept.
local TELL, BEAT, KEEP = 0.005, 3, 10
-- In one call of Redis.
local CHUNK = 100

-- KEYS: hashes of how many wait, edge by edge, each with the moment until which it counts. ARGV: this edge;
-- milliseconds that its counts are kept; how many wait here, for each hash. Answers how many wait in all
-- other edges.
local WAITING = redis.script([=[
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local sums = {}
for i = 1, #KEYS do
    local all, sum = redis.call('HGETALL', KEYS[i]), 0
    for k = 1, #all, 2 do
        local count, till = string.match(all[k + 1], '^(%d+) (%d+)$')
        if tonumber(till) < now then
            redis.call('HDEL', KEYS[i], all[k])
        elseif all[k] ~= ARGV[1] then
            sum = sum + count
        end
    end
    if ARGV[2 + i] == '0' then
        redis.call('HDEL', KEYS[i], ARGV[1])
    else
        redis.call('HSET', KEYS[i], ARGV[1],
            string.format('%s %.0f', ARGV[2 + i], now + ARGV[2]))
        redis.call('PEXPIRE', KEYS[i], ARGV[2])
    end
    sums[i] = sum
end
return sums
]=])


local _M = {}

-- count_id -> what is counted (see slots.lua): those that requests wait for here, those that have changed.
local known_cache, changed_cache = {}, {}
-- Rings when something has changed; there while this worker tells.
local bell


-- Tells Redis how many wait here, for each of a list. What the other edges have told, in the same order; nil
-- when Redis does not answer.
local function tell(list, first, last)
    local args, n = { "", "", last - first + 1 }, last - first + 1
    args[4 + n], args[5 + n] = shared_state.name(), KEEP * 1000
    for i = 1, n do
        local counted = list[first + i - 1]
        args[3 + i] = shared_state.key("share/" .. counted.count_id)
        args[5 + n + i] = slots.in_flight(counted)
    end
    return redis.eval(WAITING, args)
end


local function tell_all(counts)
    local list = {}
    for id, counted in pairs(counts) do
        list[#list + 1] = counted
        if slots.in_flight(counted) == 0 then
            known_cache[id] = nil
        end
    end
    for first = 1, #list, CHUNK do
        if not redis.usable() or not tell(list, first, min(first + CHUNK - 1, #list)) then
            return  -- they are told again
        end
    end
end


local function run()
    repeat
        local counts = known_cache
        if bell:wait(BEAT) then
            sleep(TELL)
            counts, changed_cache = changed_cache, {}
        end
        tell_all(counts)
    until not next(known_cache) and not next(changed_cache)
    bell = nil
end


-- Another number of requests wait here.
function _M.changed(counted)
    local id = counted.count_id
    known_cache[id], changed_cache[id] = counted, counted
    if not bell then
        bell = semaphore.new(0)
        local ok, err = timer_at(0, run)
        if not ok then
            bell = nil
            log(ERR, "edge: place shares: could not start: ", err)
            return
        end
    end
    if bell:count() < 1 then
        bell:post(1)
    end
end


-- How many wait in other edges of a key, and of all. 0 and 0 when Redis does not answer. Yields.
function _M.elsewhere(share, counted)
    local reply = redis.usable() and tell({ share, counted }, 1, 2)
    if not reply then
        return 0, 0
    end
    return reply[1], reply[2]
end


return _M
