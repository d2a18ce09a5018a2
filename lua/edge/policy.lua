-- Which of the backends that can take a request gets it. Pure: numbers in, an index out.
-- docs/balancing.md tells people what each policy does and why the numbers are what they are.

local bit = require "bit"

local band = bit.band
local bxor = bit.bxor
local floor = math.floor
local huge = math.huge
local log = math.log
local lshift = bit.lshift
local max = math.max
local min = math.min
local rshift = bit.rshift
local tobit = bit.tobit

-- A KV cache that fills counts like requests: 0.15 at half, 0.6 at 80 %, 1.35 at 90 %, 14.85 when full.
local KV_FACTOR = 0.15
local KV_FULLEST = 0.99


local _M = {
    -- How far above the least score a favourite may be: this much, or MARGIN_SHARE of the least score.
    -- One that holds this very conversation. With 4, two real vLLM engines under 8 requests at a time
    -- lost a tenth of their hits whenever one of them stalled: every conversation that it had moved.
    MARGIN_OWN = 8,
    MARGIN_SHARED = 3,   -- one that holds a beginning which many prompts may share
    MARGIN_SESSION = 4,  -- one that a session prefers
    MARGIN_SHARE = 0.25,
}

local MARGIN_SHARE = _M.MARGIN_SHARE


-- Whether a backend with `load` in flight may take `request` more; the first may be of any weight.
function _M.fits(load, request, limit)
    return not limit or load + request <= limit or load == 0
end


-- How many of the requests that wait in an engine others have sent: it says how many it runs and how
-- many wait, `ours` is what this edge had there at that moment. Ours are counted in flight already, and
-- seconds later another number of them waits: counted twice, they sent the load to and fro.
function _M.waiting_of_others(running, waiting, ours)
    return max(0, min(waiting, running + waiting - ours))
end


-- The load of a backend once it has taken a request of this weight; smaller is better. `weight` is the
-- backend's own; `waiting` (of others) and `kv_usage` are what its engine says, or nil.
function _M.score(load, request, weight, waiting, kv_usage)
    local score = (load + request + (waiting or 0)) / weight
    if kv_usage and kv_usage > 0 then
        local used = kv_usage < KV_FULLEST and kv_usage or KV_FULLEST
        score = score + KV_FACTOR * used / (1 - used)
    end
    return score
end


-- The index of the smallest of scores[1..n]. Ties go to the first one at or after `turn`, so that an
-- idle fleet spreads.
function _M.least_loaded(scores, n, turn)
    local best = turn % n + 1
    local least = scores[best]
    local index = best
    for _ = 2, n do
        index = index % n + 1
        if scores[index] < least then
            best, least = index, scores[index]
        end
    end
    return best
end


-- Whether a favourite's score is close enough to the least one; `margin` is one of those above.
function _M.within(score, least, margin)
    return score <= least + max(margin, MARGIN_SHARE * least)
end


local function gcd(a, b)
    while b > 0 do
        a, b = b, a % b
    end
    return a
end


-- The index for this turn: in `total` turns, the sum of weights[1..n], each comes up weights[i] times,
-- and heavy ones are spread over the round. With equal weights plain turns.
function _M.round_robin(weights, n, total, turn)
    if total == n * weights[1] then
        local equal = true
        for i = 2, n do
            equal = equal and weights[i] == weights[1]
        end
        if equal then
            return turn % n + 1
        end
    end
    -- Steps near the golden section that visit every place of the round.
    local step = floor(total * 0.618)
    while gcd(step, total) ~= 1 do
        step = step + 1
    end
    local place = turn * step % total
    for i = 1, n do
        place = place - weights[i]
        if place < 0 then
            return i
        end
    end
    return n
end


-- Two different indices out of n (at least 2) from two random numbers in [0, 1).
function _M.random_two(n, random_1, random_2)
    local first = floor(random_1 * n) + 1
    local second = floor(random_2 * (n - 1)) + 1
    if second >= first then
        second = second + 1
    end
    return first, second
end


-- a * b modulo 2^32, which a double cannot hold in one piece.
local function multiply(a, b)
    return tobit(band(a, 0xffff) * b + lshift(tobit(rshift(a, 16) * b % 4294967296), 16))
end


-- 32 bits that depend on all bits of both.
local function mixed(key, seed)
    local h = bxor(tobit(key), tobit(seed))
    h = multiply(bxor(h, rshift(h, 16)), 0x45d9f3b)
    h = multiply(bxor(h, rshift(h, 16)), 0x45d9f3b)
    return bxor(h, rshift(h, 16))
end


-- Rendezvous hashing: the index that a key prefers among n backends with these seeds and weights.
-- Removing another backend moves no key; a backend gets keys in proportion to its weight.
function _M.rendezvous(key, seeds, weights, n)
    local best, highest = 1, -huge
    for i = 1, n do
        local unit = (mixed(key, seeds[i]) % 4294967296 + 0.5) / 4294967296
        local value = -weights[i] / log(unit)
        if value > highest then
            best, highest = i, value
        end
    end
    return best
end


return _M
