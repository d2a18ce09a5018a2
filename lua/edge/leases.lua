-- Asks other edges for what this one needs more of (lending.lua), and gives them what it has unused. No
-- request waits for Redis while there is some left of what this edge was lent. All that is lent to an edge
-- that is gone comes back when it has not been heard of for shared_state.TTL.

local lease_table = require "edge.lease_table"
local lending = require "edge.lending"
local order = require "edge.order"
local redis = require "edge.redis"
local rules = require "edge.rules"
local shared_state = require "edge.shared_state"
local slots = require "edge.slots"

local ipairs = ipairs
local log = ngx.log
local ERR = ngx.ERR
local max = math.max
local min = math.min
local next = next
local now = ngx.now
local pairs = pairs
local sleep = ngx.sleep
local timer_at = ngx.timer.at

-- A worker asks for what it needs until so long (seconds) after it was last needed, this often.
local LAST, FIRST_PAUSE, PAUSE = 0.12, 0.003, 0.005
-- How often, and how long apart, a request that would be refused asks whether others have some unused.
local WAITS = { 0.003, 0.008, 0.02, 0.02 }
-- No request waits longer than this for Redis to lend at all.
local PATIENCE = 3
-- Of so many backends at a time other edges are asked for slots; where this begins goes round.
local BACKENDS, ROUND = 8, 1000000


local _M = {}

-- id -> {counted, weight, like, until}: what this worker needs more of.
local needs_cache = {}
local asking = false
-- lines.lua's, which needs us.
local announce
local turn_cache = 0


-- Who hears that something was lent: called with the model.
function _M.when_lent(callback)
    announce = callback
end


-- Asks for what this worker needs. Returns whether anything is still missing.
local function ask()
    local list, time = {}, now()
    for id, need in pairs(needs_cache) do
        if time > need.until_ then
            needs_cache[id] = nil

        else
            local missing, lease = lending.missing(id, need.weight)
            list[#list + 1] = {
                id = id, need = missing, model = need.counted.model,
                like = need.weight > 0 and need.like or max(0, lending.liked(id, need.counted.limit) - lease),
            }
        end
    end
    if #list == 0 or not redis.usable() or not lending.lock() then
        return #list > 0
    end
    lending.exchange_all(list)
    lending.unlock()
    for _, item in ipairs(list) do
        if item.lent and item.lent >= item.need then
            needs_cache[item.id] = nil
        end
        if item.model and (item.lent and item.lent > 0 or item.need == 0) then
            announce(item.model)
        end
    end
    return next(needs_cache) ~= nil
end


local function ask_until_done()
    local pause = FIRST_PAUSE
    while ask() do
        sleep(pause)
        pause = PAUSE
    end
    asking = false
end


-- Says that `weight` more of something is needed, and `like` more would do good. Does not wait.
function _M.need(counted, weight, like)
    local id = counted.count_id
    local need = needs_cache[id]
    if not need then
        lending.register(counted)
        need = { counted = counted, weight = 0, like = 0, until_ = 0 }
        needs_cache[id] = need
    end
    need.weight, need.like, need.until_ = weight, like, now() + LAST
    if asking then
        return
    end
    local ok, err = timer_at(0, ask_until_done)
    if not ok then
        log(ERR, "edge: leases: could not ask for more: ", err)
        return
    end
    asking = true
end


-- "state" when the fleet says that what cannot be asked of Redis is refused.
function _M.without()
    return redis.options().on_error == "refuse" and "state"
end


-- Asks for slots of backends that could take a request: some at a time, so that a large fleet is not
-- asked for all at once. Does not wait. "state" when nobody can be asked and the fleet says that such
-- requests are refused.
function _M.borrow(state)
    if not redis.usable() then
        return state.model.bounded and _M.without()
    end
    local scope = rules.scope(state.model, state.rule)
    local ready, n = scope and scope.ready, scope and scope.ready_count or 0
    local ticket = state.ticket
    -- While others wait too, what is free is lent one by one, in their order.
    local alone = scope and not (ticket and order.contested(ticket.line))
    local like = alone and slots.in_flight(scope.waiting) or 0
    turn_cache = turn_cache % ROUND + 1
    for i = 1, min(n, BACKENDS) do
        local backend = ready[(turn_cache + i) % n + 1]
        local fitting = not state.pinned or backend.id == state.pinned
        if fitting and backend.lease_key and not slots.has_room(backend, state.weight) then
            _M.need(backend, state.weight, like)
        end
    end
end


-- Like slots.take, for what is refused when it is not there at once: asks Redis before it says no. Besides
-- false: whether Redis has said so.
function _M.take(counted, weight)
    if not counted.lease_key then
        lending.register(counted)
    end
    local tries, over, full = 0, now() + PATIENCE, false
    while not slots.take(counted, weight) do
        tries = tries + 1
        lending.register(counted)
        if tries > #WAITS or now() > over or not redis.usable() or not lending.lock() then
            return false, full
        end
        local item = { id = counted.count_id, need = lending.missing(counted.count_id, weight), like = 0 }
        lending.exchange({ item })
        lending.unlock()
        full = (item.lent or -1) >= 0
        if item.lent == -1 then
            tries = 0
        end
        if (item.lent or 0) < item.need then
            sleep(WAITS[tries] or LAST)
        end
    end
    return true
end


-- Another edge is short of something: what we have unused goes back.
function _M.give_back(key)
    local start = shared_state.key("lease/")
    if key:sub(1, #start) ~= start or not lending.lock() then
        return
    end
    local id = key:sub(#start + 1)
    local model = lease_table.model_of(id)
    if model then
        order.press(model)
    end
    lending.lower(id, 0)
    lending.exchange({ { id = id, need = 0, like = 0 } })
    lending.unlock()
end


-- The last of what was lent is in use: there should be some for the next one.
slots.when_low(function(counted)
    if not needs_cache[counted.count_id] and redis.usable() then
        _M.need(counted, 0, 0)
    end
end)


return _M
