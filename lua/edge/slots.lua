-- In-flight counts per backend, shared by the workers. Each count also stands under its owner's
-- pid: a worker killed with -9 never runs its log phase, and the janitor takes back what it held.
-- Pids, not worker ids: the worker that replaces a killed one gets the same id.

local log = ngx.log
local ERR = ngx.ERR

local dict = ngx.shared.edge_slots


local _M = {}

-- Backends this worker has registered under its pid, so that the janitor finds them.
local registered_cache = {}


local function add(key, value)
    local new, err = dict:incr(key, value, 0)
    if not new then
        log(ERR, "edge: slots: could not count ", key, ": ", err)
    end
    return new
end


-- Marks one more request in flight on a backend.
function _M.take(backend)
    local own = backend.own_key
    if not registered_cache[own] then
        local _, err = dict:rpush("ids:" .. backend.pid, backend.id)
        if err then
            log(ERR, "edge: slots: could not register ", own, ": ", err)
        else
            registered_cache[own] = true
        end
    end
    add(own, 1)
    add(backend.total_key, 1)
end


function _M.release(backend)
    add(backend.own_key, -1)
    add(backend.total_key, -1)
end


function _M.in_flight(backend)
    return dict:get(backend.total_key) or 0
end


-- Fills loads[i] with the in-flight count of backends[i].
function _M.loads(backends, n, loads)
    for i = 1, n do
        loads[i] = dict:get(backends[i].total_key) or 0
    end
    return loads
end


-- Gives back what a dead worker held. Returns the number of slots freed.
function _M.reap(pid)
    local freed = 0
    local list = "ids:" .. pid
    local id = dict:lpop(list)
    while id do
        local own = "own:" .. pid .. ":" .. id
        local held = dict:get(own) or 0
        if held ~= 0 then
            add("total:" .. id, -held)
            freed = freed + held
        end
        dict:delete(own)
        id = dict:lpop(list)
    end
    return freed
end


return _M
