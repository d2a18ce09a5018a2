-- Chooses a backend of a model by its policy, with the loads that all workers share.

local policy = require "edge.policy"
local slots = require "edge.slots"

local dict = ngx.shared.edge_slots
local least_loaded = policy.least_loaded
local round_robin = policy.round_robin

-- A request is offered to at most this many engines: refused connections must not become a storm.
local MAX_TRIES = 3


local _M = {}

local loads_cache = {}
-- Differs by worker, so that the first requests of several workers do not meet on one engine.
local turn_cache


local function choose(model, candidates, n)
    if n == 1 then
        return candidates[1]
    end
    if model.policy == "round_robin" then
        -- Shared by the workers, so that their turns interleave.
        return candidates[round_robin(n, dict:incr("turn:" .. model.id, 1, 0) or 0)]
    end
    turn_cache = (turn_cache or ngx.worker.pid()) + 1
    return candidates[least_loaded(slots.loads(candidates, n, loads_cache), n, turn_cache)]
end


-- The backend for a new request and how many others may be tried after it; nil when none is ready.
function _M.first(model)
    local n = model.ready_count
    if n == 0 then
        return nil
    end
    local spare = (n < MAX_TRIES and n or MAX_TRIES) - 1
    return choose(model, model.ready, n), spare
end


-- Another backend after those in `tried` could not be connected to: one that takes the same body
-- and the same way.
function _M.next(model, last, tried)
    local candidates, n = {}, 0
    for i = 1, model.ready_count do
        local backend = model.ready[i]
        if not tried[backend.id] and backend.name == last.name
            and backend.tls_location == last.tls_location
        then
            n = n + 1
            candidates[n] = backend
        end
    end
    return n > 0 and choose(model, candidates, n) or nil
end


return _M
