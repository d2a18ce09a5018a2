-- Weights in flight per backend, shared by the workers; a request weighs its number of sequences.
-- Each count also stands under its owner's pid: a worker killed with -9 never runs its log phase,
-- and the janitor takes back what it held. Pids, not worker ids: the worker that replaces a killed
-- one gets the same id. Nothing here evicts: a full dictionary refuses.
--
-- What is counted is any table with id, pid, own_key, total_key and, perhaps, limit: a backend, or a
-- model's waiting requests (queue.lua), or the concurrent requests of a key (limits.lua). The ids of
-- those have a slash, which no backend's has.

local log = ngx.log
local ERR = ngx.ERR
local find = string.find

local dict = ngx.shared.edge_slots


local _M = {}

-- What this worker has registered under its pid, so that the janitor finds it.
local registered_cache = {}


-- Not incr with an initial value: that would evict another count when the dictionary is full.
local function add(key, value)
    local new, err = dict:incr(key, value)
    if not new and err == "not found" then
        dict:safe_add(key, 0)
        new, err = dict:incr(key, value)
    end
    if not new then
        log(ERR, "edge: slots: could not count ", key, ": ", err)
    end
    return new
end


local function register(backend)
    local own = backend.own_key
    local _, err = dict:rpush("ids:" .. backend.pid, backend.id)
    if err then
        log(ERR, "edge: slots: could not register ", own, ": ", err)
    else
        registered_cache[own] = true
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
    local limit = backend.limit
    if not limit then
        return true
    end
    local held = dict:get(backend.total_key) or 0
    return held + weight <= limit or held == 0
end


-- The weight in flight on a backend.
function _M.in_flight(backend)
    return dict:get(backend.total_key) or 0
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
            freed = freed + (find(id, "/", 1, true) and 0 or held)
        end
        dict:delete(own)
        ids[#ids + 1] = id
        id = dict:lpop(list)
    end
    return freed, ids
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
