-- Requests that wait because every backend of their model is at its limit: in a fair order over all
-- workers (lines.lua, fair.lua), bounded in number and in time.
--
-- A request chooses its backend and takes the slot in its own thread. In each worker the first request
-- of a line and class looks whether there is news: every few ms (pace.lua), and at once when this worker
-- frees a slot. Those behind it sleep until it wakes them. No timers: a draining worker has none.

local estimate = require "edge.estimate"
local fair = require "edge.fair"
local firsts = require "edge.firsts"
local fleet = require "edge.fleet"
local leases = require "edge.leases"
local line_table = require "edge.line_table"
local lines = require "edge.lines"
local order = require "edge.order"
local pace = require "edge.pace"
local pick = require "edge.pick"
local places = require "edge.places"
local redis = require "edge.redis"
local refusal = require "edge.refusal"
local request = require "edge.request"
local rules = require "edge.rules"
local slots = require "edge.slots"

local ipairs = ipairs
local now = ngx.now
local floor, max, min = math.floor, math.max, math.min

-- The first of a line sees whether it is its turn, and asks for a backend, whenever a slot was freed or
-- somebody served; and this often (in seconds) in case something else has changed: the fleet, a state, a
-- worker that died, one before it that left.
local ASK_ANYWAY = 0.05
-- A backend that another worker takes in the moment between choosing and taking.
local TRIES = 3


local _M = {}


-- Anew each time: while a request waits its fleet may change.
local function choose(state)
    local current = fleet.current()
    local model = current.models[state.model.id]
    if not model then
        return nil, "gone"
    end
    state.model = model
    if not state.pinned then
        return pick.choose(state, state.tried)
    end
    local scope = rules.scope(model, state.rule)
    for i = 1, scope and scope.ready_count or 0 do
        local backend = scope.ready[i]
        if backend.id == state.pinned then
            return pick.has_room(backend, state) and backend or nil, "full"
        end
    end
    return nil, "none"
end


-- Takes the slot of a backend, and its part of the engine's KV cache.
local function take(state, backend)
    if not slots.take(backend, state.weight) then
        return false
    end
    if backend.kv.limit and not slots.take(backend.kv, state.kv_tokens) then
        slots.release(backend, state.weight)
        return false
    end
    state.slot = backend
    state.kv = backend.kv.limit and backend.kv or false
    return true
end


-- A backend with its slot taken, or nil and why not.
local function try(state)
    for _ = 1, TRIES do
        local backend, reason = choose(state)
        if not backend then
            return nil, reason == "full" and redis.options() and leases.borrow(state) or reason
        end
        if take(state, backend) then
            return backend
        end
    end
    return nil, "full"
end


-- A backend when it is this request's turn. The same answers as try, and "full" when there is no reason to
-- look: up to 500 times a second in each worker, as long as anybody waits.
local function ask(state, waiter)
    local line, time = waiter.line, now()
    local freed, turn = lines.news(line)
    if freed == waiter.freed and turn == waiter.turn and time < waiter.ask_at then
        return nil, "full"
    end
    waiter.freed, waiter.turn, waiter.ask_at = freed, turn, time + ASK_ANYWAY
    waiter.poll = pace.poll(line.model)
    if firsts.front(line) ~= waiter then
        if order.pressed(line.model) and firsts.is_elsewhere(line) then
            leases.return_all(state)
        end
        return nil, "full"
    end
    return try(state)
end


-- How long a request waits at most: as its model says, or less if its client does.
local function patience(longest)
    local asked = tonumber(ngx.var.http_x_request_timeout)
    return asked and asked >= 0 and min(asked, longest) or longest
end


local function class_of(state)
    local key, rule = state.key, state.rule
    local class = fair.class(rule and rule.priority, key and key.priority, ngx.var.http_x_priority)
    state.class = class
    return class
end


-- Waits until a slot is taken for this request, one of the `counted`: the backend, or nil and why not.
local function wait(state, counted)
    state.deadline = state.deadline or now() + patience(state.model.wait)
    local waiter, why = lines.join(state, counted, class_of(state), state.deadline)
    if not waiter then
        return nil, why
    end
    request.forget(state)
    local list, bell = waiter.list, waiter.bell
    while true do
        local left = state.deadline - now()
        if list[1] == waiter then
            local backend, reason = ask(state, waiter)
            if backend then
                pace.served(state.model.id)
            end
            if backend or reason ~= "full" then
                lines.leave(state, backend ~= nil)
                return backend, reason
            end
            left = min(left, waiter.poll)
        end
        if state.cancelled then
            lines.leave(state)
            return nil, "cancelled"
        end
        if now() >= state.deadline then
            lines.leave(state)
            return nil, "late"
        end
        bell:wait(max(left, 0.001))
    end
end


-- A backend of state.model with its slot taken, at once or after waiting. Else nil and why not.
local function take_one(state)
    local scope = rules.scope(state.model, state.rule)
    if not scope then
        return nil, "none"  -- the pool has gone since the request came
    end
    if scope.limited then
        state.kv_tokens = estimate.cache(state)
    end
    local backend, reason = nil, "full"
    if not scope.limited or slots.in_flight(scope.waiting) == 0 and not order.pressed(state.model.id) then
        backend, reason = try(state)
    end
    if not backend and reason == "full" then
        backend, reason = wait(state, scope.waiting)
        ngx.var.edge_queue_ms = floor(state.waited * 1000 + 0.5)
    end
    return backend, reason
end


-- No backend of the model is ready: the first of its fallback models that has one serves instead.
-- Not what only certain engines can answer: a conversation that one holds, an adapter that only
-- engines report.
local function fall_back(state, asked)
    if state.pinned or state.reported then
        return nil, "none"
    end
    local models = fleet.current().models
    for _, id in ipairs(asked.fallback) do
        local other = models[id]
        local scope = other and rules.scope(other, state.rule)
        if scope and scope.ready_count > 0 then
            state.model, state.asked = other, asked
            local backend, reason = take_one(state)
            if backend then
                ngx.var.edge_fallback = id
                return backend
            end
            if reason ~= "none" then
                return nil, reason
            end
        end
    end
    state.model, state.asked = asked, false
    return nil, "none"
end


-- A backend for this request with its slot taken (state.slot): at once, or after waiting. Else nil
-- and what openai.refuse needs.
function _M.take(state)
    if state.asked then
        -- An engine of the fallback model could not be connected to: from the beginning.
        state.model, state.asked = state.asked, false
        ngx.var.edge_fallback = ""
    end
    local asked = state.model
    local backend, reason = take_one(state)
    if reason == "none" and asked.fallback then
        backend, reason = fall_back(state, asked)
    end
    if backend then
        return backend
    end
    return nil, refusal.of(state, reason)
end


-- Gives a request's slot back, if it holds one, and wakes whoever waits for it.
function _M.release(state)
    local backend = state.slot
    if not backend then
        return
    end
    state.slot = false
    slots.release(backend, state.weight)
    if state.kv then
        slots.release(state.kv, state.kv_tokens)
        state.kv = false
    end
    local model = state.model
    if model.limited and places.waiting(model) > 0 then
        lines.announce(model.id)
    end
    if backend.lease_key and order.pressed(model.id)
            and lines.is_elsewhere(model.id, line_table.name(state)) ~= false then
        leases.return_unused(backend)
    end
end


-- The end of a request, whatever it was doing: waiting, or holding a slot.
function _M.finish(state)
    if state.ticket then
        lines.leave(state)
    end
    _M.release(state)
end


return _M
