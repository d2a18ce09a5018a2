-- Weights in flight per backend, shared by the workers; a request weighs its number of sequences.
-- Each count also stands under its owner's pid: a worker killed with -9 never runs its log phase,
-- and the janitor takes back what it held. Pids, not worker ids: the worker that replaces a killed
-- one gets the same id. Nothing here evicts: a full dictionary refuses.
--
-- What is counted is any table with count_id, pid, own_key, total_key (see name) and, perhaps, limit: a
-- backend, or a model's waiting requests (queue.lua), or the concurrent requests of a key (limits.lua).
-- A backend's count_id has its address: when an id moves to another engine, what still runs on the old
-- one takes no room on the new one. The others' begin with a word and a slash. Where several edges share
-- a limit, lease_key says where the part that was lent to this one stands (leases.lua).

local counter = require "edge.counter"

local count = counter.add
local log = ngx.log
local ERR = ngx.ERR
local find = string.find
local min = math.min
local next, pairs = next, pairs
local worker_pid = ngx.worker.pid

local dict = ngx.shared.edge_slots


local _M = {}

-- own_key -> count_id of what this worker has registered under its pid, so that the janitor finds it.
local registered_cache = {}
-- Called when the last of what was lent is taken; must not yield.
local low


-- Gives `counted` the keys of what is counted under `id`.
function _M.name(counted, id)
    local pid = worker_pid()
    counted.count_id = id
    counted.pid = pid
    counted.own_key = "own:" .. pid .. ":" .. id
    counted.total_key = "total:" .. id
end


local function add(key, value)
    return count(dict, key, value)
end


-- ID@SCHEME://HOST:PORT
local function is_backend(count_id)
    return find(count_id, "^[^/]*@") ~= nil
end


local function register(backend)
    local own = backend.own_key
    local _, err = dict:rpush("ids:" .. backend.pid, backend.count_id)
    if err then
        log(ERR, "edge: slots: could not register ", own, ": ", err)
    else
        registered_cache[own] = backend.count_id
    end
end


-- Counts `weight` more in flight on a backend, whatever its limit.
function _M.force(backend, weight)
    if not registered_cache[backend.own_key] then
        register(backend)
    end
    add(backend.total_key, weight)
    add(backend.own_key, weight)
end


-- Who hears that all is in use that this edge was lent of something.
function _M.when_low(callback)
    low = callback
end


-- Like fits, for a part that was lent: what is heavier than the whole limit needs all of it.
local function fits_lease(backend, held, weight)
    local limit = backend.limit
    local lease = min(dict:get(backend.lease_key) or 0, limit)
    return held + weight <= lease or held == 0 and weight > limit and lease == limit, lease
end


-- Whether there is room for `weight` more where `held` is in flight. The first may be of any weight.
function _M.fits(backend, held, weight)
    local limit = backend.limit
    if limit and backend.lease_key then
        return (fits_lease(backend, held, weight))
    end
    return not limit or held + weight <= limit or held == 0
end


local function take_lease(backend, weight, total)
    local fits, lease = fits_lease(backend, total - weight, weight)
    if not fits then
        add(backend.total_key, -weight)
        return false
    end
    add(backend.own_key, weight)
    if total >= lease then
        low(backend)
    end
    return true
end


-- The same within the backend's limit: false when it has no room, and nothing is counted. A request
-- heavier than the limit runs alone.
function _M.take(backend, weight)
    local limit = backend.limit
    if not limit then
        _M.force(backend, weight)
        return true
    end
    if not registered_cache[backend.own_key] then
        register(backend)
    end
    local total = add(backend.total_key, weight)
    if total and backend.lease_key then
        return take_lease(backend, weight, total)
    end
    if total and total > limit and total ~= weight then
        add(backend.total_key, -weight)
        return false
    end
    add(backend.own_key, weight)
    return true
end


function _M.release(backend, weight)
    add(backend.own_key, -weight)
    add(backend.total_key, -weight)
end


-- Whether take would succeed now.
function _M.has_room(backend, weight)
    return not backend.limit or _M.fits(backend, dict:get(backend.total_key) or 0, weight)
end


-- The weight in flight on a backend.
function _M.in_flight(backend)
    return dict:get(backend.total_key) or 0
end


-- The same by count_id, for one that has left the fleet.
function _M.held(id)
    return dict:get("total:" .. id) or 0
end


-- Fills loads[i] with the weight in flight on backends[i].
function _M.loads(backends, n, loads)
    for i = 1, n do
        loads[i] = dict:get(backends[i].total_key) or 0
    end
    return loads
end


-- Gives back what a dead worker held. Returns the weight freed, and the ids of what it had used.
function _M.reap(pid)
    local freed = 0
    local list = "ids:" .. pid
    local ids = {}
    local id = dict:lpop(list)
    while id do
        local own = "own:" .. pid .. ":" .. id
        local held = dict:get(own) or 0
        if held ~= 0 then
            add("total:" .. id, -held)
            freed = freed + (is_backend(id) and held or 0)
        end
        dict:delete(own)
        ids[#ids + 1] = id
        id = dict:lpop(list)
    end
    return freed, ids
end


-- Frees the memory of a count that is zero and that nobody can take from any more.
function _M.forget(id)
    dict:delete("total:" .. id)
end


-- Forgets what this worker has counted for backends that the fleet has no longer: addresses come and go,
-- and a full dictionary counts nothing. What still runs there is forgotten after a later change.
function _M.keep(fleet)
    local wanted = {}
    for _, backend in pairs(fleet.backends) do
        wanted[backend.own_key] = true
    end
    local kept, dropped = {}, {}
    for own, id in pairs(registered_cache) do
        local stays = wanted[own] or not is_backend(id) or (dict:get(own) or 0) ~= 0
        local list = stays and kept or dropped
        list[own] = id
    end
    if not next(dropped) then
        return
    end
    -- The new list first: killed in between, this worker has some ids twice and none never.
    local list = "ids:" .. worker_pid()
    local old = dict:llen(list) or 0
    registered_cache = {}
    for own, id in pairs(kept) do
        register({ own_key = own, count_id = id, pid = worker_pid() })
    end
    for _ = 1, old do
        dict:lpop(list)
    end
    for own in pairs(dropped) do
        dict:delete(own)
    end
end


-- How far the total of `id` is from the sum of what the workers `pids` own.
function _M.drift(id, pids)
    local sum = 0
    for i = 1, #pids do
        sum = sum + (dict:get("own:" .. pids[i] .. ":" .. id) or 0)
    end
    return (dict:get("total:" .. id) or 0) - sum
end


-- Corrects a total by a drift that has stayed: a worker was killed between its two counts.
function _M.correct(id, drift)
    add("total:" .. id, -drift)
end


return _M
