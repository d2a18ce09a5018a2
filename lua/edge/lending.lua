-- What several edges may have in flight together, lent to each in parts: the slots of a backend, and the
-- concurrent requests of keys and models. What this edge was lent stands in the dictionary as `lease:ID`;
-- slots.lua counts against it. It is changed by one worker at a time (`lock`), and first where it does
-- no harm: lowered here before Redis hears of it, raised here after Redis has.

local lease_table = require "edge.lease_table"
local redis = require "edge.redis"
local scripts = require "edge.lease_scripts"
local shared_state = require "edge.shared_state"
local slots = require "edge.slots"

local find = string.find
local floor = math.floor
local ipairs = ipairs
local log = ngx.log
local WARN = ngx.WARN
local max = math.max
local min = math.min
local now = ngx.now
local sleep = ngx.sleep
local worker_pid = ngx.worker.pid

local dict = ngx.shared.edge_slots

local LOCK = "lease lock"
-- In one call of Redis.
local CHUNK = 100
-- Of a limit one in so many is kept free where nobody is short, so that requests need not ask.
local SPARE = 8
-- Even what has not changed is told again, every so many seconds: Redis forgets what it never hears of.
local REMIND = 60


local _M = {}

local reminded = 0


local function lock()
    local ttl = 0.5 + 2 * redis.options().timeout / 1000
    for _ = 1, ttl * 1000 do
        if dict:safe_add(LOCK, worker_pid(), ttl) then
            return true
        end
        sleep(0.001)
    end
    log(WARN, "edge: leases: another worker holds the lock for more than ", ttl, " s")
    return false
end


local function unlock()
    if dict:get(LOCK) == worker_pid() then
        dict:delete(LOCK)
    end
end


-- What this edge would like to have of a limit where nobody is short: its share of it, or some more than
-- what is in flight.
local function liked(id, limit)
    local spare = max(1, floor(limit / SPARE))
    return min(limit, max(slots.held(id) + spare, floor(limit / shared_state.edges())))
end


-- What this edge has of a limit while Redis is silent.
local function share_of(limit)
    return redis.options().on_error == "refuse" and 0 or max(1, floor(limit / shared_state.edges()))
end


-- How much more must be lent before `weight` fits, and what is lent. Heavier than the limit needs all of it.
function _M.missing(id, weight)
    local lease, limit = dict:get("lease:" .. id) or 0, dict:get("bound:" .. id) or 0
    return max(min(limit, slots.held(id) + weight) - lease, 0), lease
end


-- Whether this edge has been lent more than is in flight.
function _M.has_unused(id)
    return (dict:get("lease:" .. id) or 0) > slots.held(id)
end


-- Makes `counted` (see slots.lua) one that is lent. While Redis is silent: with this edge's share, as of the
-- others (on_own).
function _M.register(counted)
    lease_table.register(counted, redis.usable() and 0 or share_of(counted.limit))
end


-- Lowers what is lent to `to`, but not below what is in flight. Whoever counts at this moment does so
-- before it looks at the lease, and we look after we have lowered it: one of us sees the other.
local function lower(id, to)
    local key = "lease:" .. id
    local lease = dict:get(key) or 0
    if lease <= to then
        return lease
    end
    dict:set(key, to)
    local held = slots.held(id)
    if held > to then
        to = min(held, lease)
        dict:set(key, to)
    end
    return to
end


-- Whether just all of a limit is lent to this edge: then no other one has any.
function _M.has_all(counted)
    return dict:get(counted.lease_key) == counted.limit and not lease_table.is_changed(counted.count_id)
end


-- Lowers what is lent to a limit that has become smaller. Under the lock. Whether other edges may have too
-- much as well: they hear of it with the next exchange.
function _M.trim(id)
    local limit = dict:get("bound:" .. id)
    if limit and (dict:get("lease:" .. id) or 0) > limit then
        lower(id, limit)
        return true
    end
    return lease_table.is_changed(id)
end


-- Tells Redis what this edge has of some things and asks for more: a list of {id, need, like}. Under
-- the lock. Fills item.lent (-1: nothing is lent for a moment). nil and the reason when Redis does not
-- answer.
local function exchange(list)
    local args = { "", "", 2 + 2 * #list, shared_state.key("edges"), shared_state.key("closed") }
    for i, item in ipairs(list) do
        args[4 + 2 * i] = shared_state.key("lease/" .. item.id)
        args[5 + 2 * i] = shared_state.key("wanting/" .. item.id)
    end
    local at = #args
    args[at + 1], args[at + 2] = shared_state.name(), shared_state.TTL * 1000
    args[at + 3] = shared_state.key("news/")
    for i, item in ipairs(list) do
        local j = at + 4 * i
        args[j], args[j + 1] = dict:get("lease:" .. item.id) or 0, item.need
        args[j + 2], args[j + 3] = item.like, dict:get("bound:" .. item.id) or 0
    end
    local lent, err = redis.eval(scripts.exchange, args)
    if not lent then
        return nil, err
    end
    for i, item in ipairs(list) do
        item.lent = lent[i]
        if item.lent > 0 then
            dict:incr("lease:" .. item.id, item.lent)
        end
    end
    return true
end


local function exchange_all(list)
    for first = 1, #list, CHUNK do
        local part = {}
        for i = first, min(first + CHUNK - 1, #list) do
            part[#part + 1] = list[i]
        end
        local ok, err = exchange(part)
        if not ok then
            return nil, err
        end
    end
    return true
end


-- Once a second, by one worker: gives back what is too much, asks for what is liked. What nobody here will
-- use again is given back whole, and then forgotten. `backends`: count ids of the fleet, as a set.
local function balance(backends)
    local list, over, all = {}, {}, now() - reminded > REMIND
    for number = 1, lease_table.last() do
        local id, limit = lease_table.at(number)
        if id then
            local unused = lease_table.is_over(number, id, backends)
            local wanted = unused and 0 or liked(id, limit)
            local lease = dict:get("lease:" .. id) or 0
            if lease ~= wanted or all and not unused then
                lower(id, wanted)
                list[#list + 1] = { id = id, need = 0, like = max(wanted - lease, 0) }
            end
            if unused then
                over[#over + 1] = number
                over[#over + 1] = id
            end
        end
    end
    if all then
        reminded = now()
    end
    local ok, err = exchange_all(list)
    for i = 1, ok and #over or 0, 2 do
        lease_table.drop(over[i], over[i + 1])
    end
    return ok, err
end


-- Redis did not know this edge any more: it learns what is in flight, and nothing beyond.
local function tell_all()
    local list = {}
    for number = 1, lease_table.last() do
        local id = lease_table.at(number)
        if id then
            -- In flight without a lease: what was taken as this edge's share while Redis was away.
            local held = slots.held(id)
            if lower(id, 0) < held then
                dict:set("lease:" .. id, held)
            end
            list[#list + 1] = { id = id, need = 0, like = 0 }
        end
    end
    return exchange_all(list)
end


-- `anew`: Redis did not know this edge. `backends`: as of balance.
function _M.refresh(anew, backends)
    if lease_table.last() == 0 or not lock() then
        return true
    end
    local ok, err = true, nil
    if anew then
        ok, err = tell_all()
    end
    if ok then
        ok, err = balance(backends)
    end
    unlock()
    return ok, err
end


-- Redis is silent: this edge's share of each limit. For slots only after `long`: until then Redis has kept
-- for us what it lent, and nobody else may have it.
function _M.on_own(long)
    for number = 1, lease_table.last() do
        local id, limit = lease_table.at(number)
        if id and (long or find(id, "^limit/")) then
            dict:set("lease:" .. id, share_of(limit))
        end
    end
end


_M.share_of = share_of
_M.lock = lock
_M.unlock = unlock
_M.exchange = exchange
_M.exchange_all = exchange_all
_M.lower = lower
_M.liked = liked


return _M
