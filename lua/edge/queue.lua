-- Requests that wait because every backend of their model is at its limit: in a fair order over all
-- workers (lines.lua, fair.lua), bounded in number and in time.
--
-- A request chooses its backend and takes the slot in its own thread. In each worker the first request
-- of a line and class looks whether there is news: every few ms (pace.lua), and at once when this worker
-- frees a slot. Those behind it sleep until it wakes them. No timers: a draining worker has none.

local estimate = require "edge.estimate"
local fair = require "edge.fair"
local fleet = require "edge.fleet"
local leases = require "edge.leases"
local lines = require "edge.lines"
local order = require "edge.order"
local pace = require "edge.pace"
local pick = require "edge.pick"
local redis = require "edge.redis"
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
    if freed == waiter.freed and turn == waiter.turn and time < waiter.ask_at and not waiter.list.others then
        return nil, "full"
    end
    waiter.freed, waiter.turn, waiter.ask_at = freed, turn, time + ASK_ANYWAY
    waiter.poll = pace.poll(line.model)
    if lines.front(line) ~= waiter then
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


-- Why there is no backend for a request, as openai.refuse takes it.
function _M.refusal(state, reason)
    local model = state.model
    local pool = state.rule and state.rule.pool
    local whose = "model '" .. model.id .. "'" .. (pool and " in pool '" .. pool .. "'" or "")
    if reason == "crowded" then
        return 429, "queue_full", "Every engine of " .. whose .. " is at its limit, and "
            .. model.waiting.limit .. " requests are waiting already. Try again later.",
            { retry_after = pace.retry_after(model.id, _M.length(model), model.wait) }

    elseif reason == "share" then
        return 429, "queue_full", "Every engine of " .. whose .. " is at its limit, and the key '"
            .. state.key.name .. "' has as many requests waiting as one key may. Try again later.",
            { retry_after = pace.retry_after(model.id, _M.length(model), model.wait) }

    elseif reason == "late" then
        return 429, "queue_timeout", "Every engine of " .. whose .. " was at its limit for "
            .. floor(state.waited * 10 + 0.5) / 10 .. " s. Nothing was started; try again later.",
            { retry_after = pace.retry_after(model.id, _M.length(model) + 1, model.wait) }

    elseif reason == "state" then
        return 503, "state_unavailable", "Redis, in which the slots of model '" .. model.id
            .. "' are counted, does not answer. Nothing was started; try again shortly.", { retry_after = 1 }

    elseif reason == "cancelled" then
        return 503, "cancelled", "An operator has ended this request while it waited. Nothing was started.",
            { no_retry = true }

    elseif reason == "gone" then
        return 404, "model_not_found", "The model '" .. model.id
            .. "' was removed while the request waited. GET /v1/models lists those there are.",
            { param = "model" }
    end
    return 503, "no_backend_ready", "No engine of " .. whose
        .. " is ready. It may still be starting; try again shortly.", { retry_after = 5 }
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
    return nil, _M.refusal(state, reason)
end


-- How many requests of a model wait, in all workers.
function _M.length(model)
    local waits, n = model.waits, 0
    for i = 1, #waits do
        n = n + slots.in_flight(waits[i])
    end
    return n
end


-- The same by class: high, normal, low.
function _M.lengths(model)
    local waits, lengths = model.waits, { 0, 0, 0 }
    for i = 1, #waits do
        for class = 1, fair.CLASSES do
            lengths[class] = lengths[class] + slots.in_flight(waits[i].classes[class])
        end
    end
    return lengths
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
    if model.limited and _M.length(model) > 0 then
        lines.announce(model.id)
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
