-- What several edges may have in flight together, lent to each in parts: the slots of a backend, and the
-- concurrent requests of keys and models. What this edge was lent stands in the dictionary as `lease:ID`;
-- slots.lua counts against it. It is changed by one worker at a time (`lock`), and first where it does
-- no harm: lowered here before Redis hears of it, raised here after Redis has.

local redis = require "edge.redis"
local scripts = require "edge.lease_scripts"
local shared_state = require "edge.shared_state"
local slots = require "edge.slots"

local find = string.find
local floor = math.floor
local ipairs = ipairs
local log = ngx.log
local ERR = ngx.ERR
local WARN = ngx.WARN
local max = math.max
local min = math.min
local now = ngx.now
local sleep = ngx.sleep
local worker_pid = ngx.worker.pid

local dict = ngx.shared.edge_slots

local LOCK = "lease lock"
-- Of everything that is lent, the number, and each by its number: ids; `bound:ID` is its limit.
local COUNT, AT = "leases", "leases/"
-- Beyond this many different ones an edge counts the rest by itself.
local MOST = 50000
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


-- The model of a backend that is lent; nil for other things.
function _M.model_of(id)
    return dict:get("model:" .. id)
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


-- Makes `counted` (see slots.lua) one that is lent.
function _M.register(counted)
    local id, limit = counted.count_id, counted.limit
    local key = "lease:" .. id
    if dict:get("bound:" .. id) ~= limit then
        local ok, err = dict:safe_set("bound:" .. id, limit)
        if not ok then
            log(ERR, "edge: leases: could not store ", id, ": ", err)
            return
        end
    end
    -- One that comes while Redis is silent: this edge's share, as of the others (on_own).
    if dict:safe_add(key, redis.usable() and 0 or share_of(limit)) then
        local number = dict:incr(COUNT, 1, 0)
        if counted.model then
            dict:safe_set("model:" .. id, counted.model)
        end
        if number > MOST or not dict:safe_set(AT .. number, id) then
            log(ERR, "edge: leases: too many limits; this edge counts ", id, " by itself")
            dict:delete(key)
            return
        end
    end
    counted.lease_key = key
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


-- Tells Redis what this edge has of some things and asks for more: a list of {id, need, like}. Under
-- the lock. Fills item.lent (-1: nothing is lent for a moment). nil and the reason when Redis does not
-- answer.
local function exchange(list)
    local args = { "", "", 2 + 2 * #list, shared_state.key("edges"), shared_state.key("closed") }
    for i, item in ipairs(list) do
        args[4 + 2 * i] = shared_state.key("lease/" .. item.id)
        args[5 + 2 * i] = shared_state.key("short/" .. item.id)
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


-- Once a second, by one worker: gives back what is too much, asks for what is liked.
local function balance()
    local list, all = {}, now() - reminded > REMIND
    for number = 1, min(dict:get(COUNT) or 0, MOST) do
        local id = dict:get(AT .. number)
        local limit = id and dict:get("bound:" .. id)
        if limit then
            local wanted = liked(id, limit)
            local lease = dict:get("lease:" .. id) or 0
            if lease ~= wanted or all then
                lower(id, wanted)
                list[#list + 1] = { id = id, need = 0, like = max(wanted - lease, 0) }
            end
        end
    end
    if all then
        reminded = now()
    end
    return exchange_all(list)
end


-- Redis did not know this edge any more: it learns what is in flight, and nothing beyond.
local function tell_all()
    local list = {}
    for number = 1, min(dict:get(COUNT) or 0, MOST) do
        local id = dict:get(AT .. number)
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


-- `anew`: Redis did not know this edge.
function _M.refresh(anew)
    if (dict:get(COUNT) or 0) == 0 or not lock() then
        return true
    end
    local ok, err = true, nil
    if anew then
        ok, err = tell_all()
    end
    if ok then
        ok, err = balance()
    end
    unlock()
    return ok, err
end


-- Redis is silent: this edge's share of each limit. For slots only after `long`: until then Redis has kept
-- for us what it lent, and nobody else may have it.
function _M.on_own(long)
    for number = 1, min(dict:get(COUNT) or 0, MOST) do
        local id = dict:get(AT .. number)
        local limit = id and dict:get("bound:" .. id)
        if limit and (long or find(id, "^limit/")) then
            dict:set("lease:" .. id, share_of(limit))
        end
    end
end


_M.lock = lock
_M.unlock = unlock
_M.exchange = exchange
_M.exchange_all = exchange_all
_M.lower = lower
_M.liked = liked


return _M
