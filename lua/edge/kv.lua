-- The KV cache of an engine as a budget: how many estimated tokens may run there at the same time, so
-- that it need not preempt. Pure.
--
-- Requests share what they have in common, and most have not grown to their full length: of what was
-- estimated only a part is in use. That part is learned from the engine's own usage.

local floor = math.floor
local max = math.max
local min = math.min
local sqrt = math.sqrt

-- Of the cache, this much is given away.
local FULL = 0.95
-- What runs grows until it ends: its part now is less than its part then.
local GROWTH = 1.25
-- Of a few sequences all may be long and near their end at the same time; of many, only some are.
local SPREAD = 1
local LEAST = 0.05
-- Below this much of the cache estimates say little about sharing.
local TELLING = 0.2
-- More use counts at once, less of it little by little: requests that have just been sent use nothing
-- yet, and a budget that follows them starts more than there is room for when they have grown.
local LESS = 0.05
-- An engine that preempts had been given too much.
local PREEMPTED = 1.5


local _M = {}


-- The part of estimated tokens that is really used, from 0.05 to 1, with a new measurement: `before` is
-- what it was (nil: not known yet), `usage` 0 to 1, `size` and `estimated` in tokens, of so many
-- `sequences`; `preempted`: whether the engine has preempted since.
function _M.learn(before, usage, size, estimated, sequences, preempted)
    local part = before or 1
    if preempted then
        return min(1, PREEMPTED * part)
    end
    if not usage or estimated < TELLING * size then
        return part
    end
    local grown = (GROWTH + SPREAD / sqrt(max(1, sequences))) * usage
    local measured = max(LEAST, min(1, grown * size / estimated))
    return max(measured, part + LESS * (measured - part))
end


-- How many estimated tokens may run on an engine whose cache holds `size`.
function _M.budget(size, part)
    return floor(FULL * size / part)
end


return _M
