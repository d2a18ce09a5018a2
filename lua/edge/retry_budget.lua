-- How many requests of a model may go on to another engine after a failed connect: a burst, a share of
-- the requests, and a few per second. An outage must not become a storm of connects. Pure.

local min = math.min

local BURST = 100
local SHARE = 0.2
local PER_SECOND = 10


local _M = {}


-- A full budget at the time `now` (seconds).
function _M.new(now)
    return { left = BURST, at = now }
end


-- A request has gone to its first engine.
function _M.earn(budget)
    local left = budget.left + SHARE
    budget.left = left < BURST and left or BURST
end


-- Whether a request may go on to another engine; counts it when it may.
function _M.spend(budget, now)
    local left = min(BURST, budget.left + (now - budget.at) * PER_SECOND)
    budget.at = now
    budget.left = left < 1 and left or left - 1
    return left >= 1
end


return _M
