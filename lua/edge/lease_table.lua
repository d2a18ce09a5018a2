-- Of what things this edge has been lent some (lending.lua): a list in the dictionary, with holes that are
-- filled again. `lease:ID` is what was lent, `bound:ID` its limit, `model:ID` the model of a backend.
-- Whoever needs something registers it first, each time: what was forgotten meanwhile is there again.

local redis = require "edge.redis"
local slots = require "edge.slots"

local find = string.find
local log = ngx.log
local ERR = ngx.ERR
local min = math.min
local now = ngx.now

local dict = ngx.shared.edge_slots

-- How many numbers were given, ids by number, numbers that are free again.
local COUNT, AT, FREE = "leases", "leases/", "leases free"
-- Beyond this many different ones an edge counts the rest by itself.
local MOST = 50000
-- Seconds after which a limit or line that nobody uses is forgotten. (A backend: when it has left the fleet.)
local IDLE = 600
-- Seconds after a limit has changed in which other edges may still have more of it than they should.
local SETTLES = 3


local _M = {}

-- Number -> {id, since}: what this worker has seen unused, and since when.
local idle_cache = {}


-- A place in the list for an id that has none. Whether there was one.
local function add(id)
    local number = dict:lpop(FREE) or dict:incr(COUNT, 1, 0)
    if number <= MOST and dict:safe_set(AT .. number, id) then
        return true
    end
    if number <= MOST then
        dict:rpush(FREE, number)
    end
    log(ERR, "edge: leases: too many limits; this edge counts ", id, " by itself")
    return false
end


-- Makes `counted` (see slots.lua) one that is lent; `first`: what this edge has of it until it is lent some.
function _M.register(counted, first)
    local id, limit = counted.count_id, counted.limit
    local key = "lease:" .. id
    if dict:get("bound:" .. id) ~= limit then
        local ok, err = dict:safe_set("bound:" .. id, limit)
        if not ok then
            log(ERR, "edge: leases: could not store ", id, ": ", err)
            return
        end
        dict:safe_set("changed:" .. id, true, SETTLES)
    end
    if counted.model and not dict:get("model:" .. id) then
        dict:safe_set("model:" .. id, counted.model)
    end
    if dict:safe_add(key, first) and not add(id) then
        dict:delete(key)
        return
    end
    counted.lease_key = key
end


-- Whether a limit has changed a moment ago.
function _M.is_changed(id)
    return dict:get("changed:" .. id) == true
end


-- The last number that may have an id.
function _M.last()
    return min(dict:get(COUNT) or 0, MOST)
end


-- The id with a number and its limit; nil where there is none.
function _M.at(number)
    local id = dict:get(AT .. number)
    local limit = id and dict:get("bound:" .. id)
    if limit then
        return id, limit
    end
end


-- The model of a backend that is lent; nil for other things.
function _M.model_of(id)
    return dict:get("model:" .. id)
end


-- How many there are.
function _M.count()
    return _M.last() - (dict:llen(FREE) or 0)
end


-- Whether nobody here will miss what has this number. `backends`: count ids of the fleet, as a set.
function _M.is_over(number, id, backends)
    if slots.held(id) ~= 0 then
        idle_cache[number] = nil
        return false
    end
    if find(id, "^[^/]*@") then
        return not backends[id]
    end
    local idle = idle_cache[number]
    if not idle or idle.id ~= id then
        idle_cache[number] = { id = id, since = now() }
        return false
    end
    return now() - idle.since > IDLE
end


-- Forgets what has been given back to Redis. Somebody may begin to use it at this very moment: then he
-- finds nothing lent, and registers it anew.
function _M.drop(number, id)
    if slots.held(id) ~= 0 or (dict:get("lease:" .. id) or 0) ~= 0 or not redis.usable() then
        return
    end
    idle_cache[number] = nil
    dict:delete("lease:" .. id)
    dict:delete("bound:" .. id)
    dict:delete("model:" .. id)
    dict:delete(AT .. number)
    dict:rpush(FREE, number)
end


return _M
