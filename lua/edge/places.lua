-- Places of those that wait: how many requests of a model (or of one of its pools) may, and how many of one
-- key. Where several edges share a Redis the places are those of all edges together, lent like slots: an
-- edge asks for more only when all that it was lent are taken. So is a key's part of them (place_shares.lua).

local fair = require "edge.fair"
local leases = require "edge.leases"
local lending = require "edge.lending"
local place_shares = require "edge.place_shares"
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


-- nil and why when there is surely no place among those `counted`. `own` and `all`: how many of the key, and
-- in all, wait in other edges.
local function fits(counted, share, own, all)
    local waiting = slots.in_flight(counted)
    if share and not fair.may_join(slots.in_flight(share) + own, waiting + all, counted.limit) then
        return nil, "share"
    end
    if waiting >= counted.limit or (counted.full_until or 0) > now() then
        return nil, "crowded"
    end
    return true
end


-- The same, of all edges together. May yield.
function _M.room(counted, share)
    local ok, why = fits(counted, share, 0, 0)
    if ok and share and redis.options() then
        ok, why = fits(counted, share, place_shares.elsewhere(share, counted))
    end
    return ok, why
end


local function take_lent(counted)
    -- Who waits here for Redis to lend stands in no line yet, and is overtaken when it does. Within its share
    -- this edge need not ask.
    local is_within = slots.in_flight(counted) < lending.share_of(counted.limit)
    local ok, full = leases.take(counted, 1, is_within)
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


-- Other edges shall know.
local function tell(counted, share)
    if share and redis.options() then
        place_shares.changed(share)
        place_shares.changed(counted)
    end
end


-- A place among those `counted`, or nil and why there is none. May yield, but not once it has one.
function _M.take(counted, class, share)
    local ok, why = fits(counted, share, 0, 0)
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
    tell(counted, share)
    return true
end


-- Gives back what take has taken. Does not yield.
function _M.leave(counted, class, share)
    slots.release(counted, 1)
    slots.release(counted.classes[class], 1)
    if share then
        slots.release(share, 1)
    end
    tell(counted, share)
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
