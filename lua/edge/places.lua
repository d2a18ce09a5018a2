-- Places of those that wait: how many requests of a model (or of one of its pools) may, and how many of one
-- key. Where several edges share a Redis the places are those of all edges together, lent like slots: an
-- edge asks for more only when all that it was lent are taken. A key's part of them is counted here alone.

local fair = require "edge.fair"
local leases = require "edge.leases"
local lending = require "edge.lending"
local redis = require "edge.redis"
local slots = require "edge.slots"

local now = ngx.now

-- Seconds in which nobody here asks again after others had no place to lend.
local PAUSE = 0.05


local _M = {}


-- Of a key's waiting requests a count of their own, like those of a backend's slots.
function _M.share_of(counted, key)
    local share = {}
    slots.name(share, counted.count_id .. "/key/" .. key.name)
    return share
end


-- nil and why when there is surely no place among those `counted`. Does not yield.
function _M.room(counted, share)
    local waiting = slots.in_flight(counted)
    if share and not fair.may_join(slots.in_flight(share), waiting, counted.limit) then
        return nil, "share"
    end
    if waiting >= counted.limit or (counted.full_until or 0) > now() then
        return nil, "crowded"
    end
    return true
end


local function take_lent(counted)
    local ok, full = leases.take(counted, 1)
    if ok then
        return true
    end
    if full then
        counted.full_until = now() + PAUSE
        return nil, "crowded"
    end
    if not redis.usable() and leases.without() then
        return nil, "state"
    end
    -- Nobody has said that there is none, and what was lent last may be little by chance: then this edge has
    -- its share.
    if slots.in_flight(counted) < lending.share_of(counted.limit) then
        slots.force(counted, 1)
        return true
    end
    return nil, "crowded"
end


-- A place among those `counted`, or nil and why there is none. May yield, but not once it has one.
function _M.take(counted, class, share)
    local ok, why = _M.room(counted, share)
    if not ok then
        return nil, why
    end
    if redis.options() then
        ok, why = take_lent(counted)
    else
        ok, why = slots.take(counted, 1), "crowded"
    end
    if not ok then
        return nil, why
    end
    if share then
        slots.force(share, 1)
    end
    slots.force(counted.classes[class], 1)
    return true
end


-- How many requests of a model wait, in all workers.
function _M.waiting(model)
    local waits, n = model.waits, 0
    for i = 1, #waits do
        n = n + slots.in_flight(waits[i])
    end
    return n
end


-- The same by class: high, normal, low.
function _M.waiting_by_class(model)
    local waits, lengths = model.waits, { 0, 0, 0 }
    for i = 1, #waits do
        for class = 1, fair.CLASSES do
            lengths[class] = lengths[class] + slots.in_flight(waits[i].classes[class])
        end
    end
    return lengths
end


return _M
