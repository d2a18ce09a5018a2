-- Chooses a backend of a model by its policy, with the loads that all workers share.

local policy = require "edge.policy"
local slots = require "edge.slots"

local dict = ngx.shared.edge_slots
local least_loaded = policy.least_loaded
local round_robin = policy.round_robin


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


-- The ready backends that can take this request: not tried yet, and an adapter that only engines
-- report is sent to those that report it.
local function candidates_of(state, tried)
    local model = state.model
    local found, n = {}, 0
    for i = 1, model.ready_count do
        local backend = model.ready[i]
        if not (tried and tried[backend.id])
            and not (state.reported and not backend.adapters[state.name])
        then
            n = n + 1
            found[n] = backend
        end
    end
    return found, n
end


-- The backend for a new request; nil when none is ready.
function _M.first(state)
    local model = state.model
    if not state.reported then
        return model.ready_count > 0 and choose(model, model.ready, model.ready_count) or nil
    end
    return _M.next(state, nil)
end


-- Another backend than those in `tried`, or nil.
function _M.next(state, tried)
    local candidates, n = candidates_of(state, tried)
    return n > 0 and choose(state.model, candidates, n) or nil
end


return _M
