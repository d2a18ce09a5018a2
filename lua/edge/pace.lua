-- How fast the line of a model moves, over all workers: when a refused client should come back, and how
-- often the first of a line looks.
-- The moments at which the last requests were served lie in a ring: ten generations of a minute each
-- and a thousand short ones are both measured over as long as they took.

local counter = require "edge.counter"

local count = counter.add
local log = ngx.log
local now = ngx.now
local ERR = ngx.ERR
local ceil, max, min = math.ceil, math.max, math.min

local dict = ngx.shared.edge_queue

local RING = 32
-- Older moments say nothing of now (seconds).
local FORGET = 300
-- Hardly anybody was served from the line lately: nothing better is known (seconds).
local UNKNOWN = 30
-- So many looks between two that are served: a slot that another worker has freed stays empty for a small
-- part of what it is taken for, and looking costs the same for each request, quick or slow (seconds).
local LOOKS = 4
local LEAST_POLL, MOST_POLL = 0.002, 0.01


local _M = {}


local function slot(model_id, number)
    return "pace:" .. model_id .. ":" .. number % RING
end


local function note(key, value)
    local ok, err = dict:safe_set(key, value, FORGET)
    if not ok then
        log(ERR, "edge: pace: could not note that a request was served: ", err)
    end
end


-- Counts one request that got its slot after waiting.
function _M.served(model_id)
    local number = count(dict, "pace:" .. model_id, 1)
    if not number then
        return
    end
    local key, time = slot(model_id, number), now()
    local before = dict:get(key)
    note(key, time)
    if before then
        note("pause:" .. model_id, (time - before) / RING)
    end
end


-- How long the first of a line may sleep between two looks (seconds).
function _M.poll(model_id)
    local pause = dict:get("pause:" .. model_id)
    return pause and max(LEAST_POLL, min(MOST_POLL, pause / LOOKS)) or LEAST_POLL
end


-- Whole seconds until `length` requests will have been served, when `served` were in the last
-- `seconds`; from 1 to `longest`.
local function estimate(length, served, seconds, longest)
    local wait = served > 0 and length * seconds / served or UNKNOWN
    return max(1, min(ceil(wait), ceil(longest)))
end


-- When a client that is refused now should come back, in whole seconds: by then those that wait now
-- have been served.
function _M.retry_after(model_id, length, longest)
    local last = dict:get("pace:" .. model_id) or 0
    for number = max(1, last - RING + 1), last - 1 do
        local at = dict:get(slot(model_id, number))
        if at then
            return estimate(length, last - number, now() - at, longest)
        end
    end
    return estimate(length, 0, 0, longest)
end


return _M
