-- Chooses a backend of a model by its policy, with the loads that all workers share. Nothing here
-- yields: the arrays of one choice are those of the next.

local policy = require "edge.policy"
local prefix_map = require "edge.prefix_map"
local rules = require "edge.rules"
local slots = require "edge.slots"

local dict = ngx.shared.edge_slots
local fits = policy.fits
local huge = math.huge
local random = math.random
local score_of = policy.score
local slot_fits = slots.fits
local within = policy.within


local _M = {}

local candidates_cache, loads_cache, scores_cache = {}, {}, {}
local weights_cache, seeds_cache = {}, {}
-- Differs by worker, so that the first requests of several workers do not meet on one engine.
local turn_cache


-- The score of a candidate once it has the request; infinite when it has no room.
local function judge(backend, load, state)
    local weight, kv = state.weight, backend.kv
    if not slot_fits(backend, load, weight)
        or kv.limit and not fits(slots.in_flight(kv), state.kv_tokens, kv.limit)
    then
        return huge
    end
    return score_of(load, weight, backend.weight, backend.waiting_others, backend.kv_usage)
end


-- Whether a backend could take a request now: a slot, and what it needs of the KV cache.
function _M.has_room(backend, state)
    return slots.has_room(backend, state.weight) and slots.has_room(backend.kv, state.kv_tokens)
end


local has_room = _M.has_room


-- Fills scores_cache. Returns the index of the least score, nil when all are full.
local function least_loaded(state, candidates, n)
    local loads = slots.loads(candidates, n, loads_cache)
    for i = 1, n do
        scores_cache[i] = judge(candidates[i], loads[i], state)
    end
    turn_cache = (turn_cache or ngx.worker.pid()) + 1
    local index = policy.least_loaded(scores_cache, n, turn_cache)
    return scores_cache[index] < huge and index or nil
end


local function fill_weights(candidates, n)
    local total = 0
    for i = 1, n do
        weights_cache[i] = candidates[i].weight
        total = total + weights_cache[i]
    end
    return total
end


local function round_robin(state, candidates, n)
    local total = fill_weights(candidates, n)
    -- Shared by the workers, so that their turns interleave. A pool has turns of its own: among the
    -- model's it might always get the same one.
    local pool = state.rule and state.rule.pool
    local key = "turn:" .. state.model.id .. (pool and " " .. pool or "")
    local turn = dict:incr(key, 1, 0) or 0
    local index = policy.round_robin(weights_cache, n, total, turn)
    for _ = 1, n do
        if has_room(candidates[index], state) then
            return index
        end
        index = index % n + 1
    end
end


local function random_two(state, candidates, n)
    if n < 3 then
        return least_loaded(state, candidates, n)
    end
    local first, second = policy.random_two(n, random(), random())
    local one, two = candidates[first], candidates[second]
    local score_1 = judge(one, slots.in_flight(one), state)
    local score_2 = judge(two, slots.in_flight(two), state)
    if score_1 == huge and score_2 == huge then
        return least_loaded(state, candidates, n)
    end
    return score_1 <= score_2 and first or second
end


local function session(state, candidates, n)
    local least = least_loaded(state, candidates, n)
    if not state.session or not least then
        return least
    end
    fill_weights(candidates, n)
    for i = 1, n do
        seeds_cache[i] = candidates[i].seed
    end
    local index = policy.rendezvous(state.session, seeds_cache, weights_cache, n)
    return within(scores_cache[index], scores_cache[least], policy.MARGIN_SESSION) and index or least
end


local function prefix(state, candidates, n)
    local least = least_loaded(state, candidates, n)
    if not state.chain or not least then
        return least
    end
    local index, known, shared = prefix_map.choose(state.chain, state.model.by_tag, candidates, n,
                                                   scores_cache, least)
    state.known, state.shared = known, shared
    return index
end


local POLICIES = {
    least_loaded = least_loaded,
    round_robin = round_robin,
    random_two = random_two,
    session = session,
    prefix = prefix,
}


-- Gathers the ready backends of one tier that can take this request: not tried yet, and an adapter
-- that only engines report is sent to those that report it. Returns their number, and where in
-- `ready`, which is in the order of tiers, the next tier begins.
local function gather(state, tried, ready, first, count)
    local tier, n, i = ready[first].tier, 0, first
    local name = state.reported and state.name
    while i <= count and ready[i].tier == tier do
        local backend = ready[i]
        if not (tried and tried[backend.id]) and not (name and not backend.adapters[name]) then
            n = n + 1
            candidates_cache[n] = backend
            backend.at = n
        end
        i = i + 1
    end
    return n, i
end


-- The backend for a request, not one of the ids in `tried` (nil: none was). nil and "none" when no
-- backend is ready, nil and "full" when all that are ready have no room. Takes no slot.
function _M.choose(state, tried)
    local model, rule = state.model, state.rule
    local scope = rules.scope(model, rule)
    if not scope then
        return nil, "none"
    end
    local ready, count = scope.ready, scope.ready_count
    local choose = POLICIES[rule and rule.policy or model.policy] or least_loaded
    local first, reason = 1, "none"
    state.known = false  -- of an engine that was tried before, perhaps of another model
    while first <= count do
        local n
        n, first = gather(state, tried, ready, first, count)
        if n > 0 then
            reason = "full"
            local index = choose(state, candidates_cache, n)
            if index then
                return candidates_cache[index]
            end
        end
    end
    return nil, reason
end


return _M
