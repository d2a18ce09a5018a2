-- Asks other edges for what this one needs more of (lending.lua), and gives them what it has unused. No
-- request waits for Redis while there is some left of what this edge was lent. All that is lent to an edge
-- that is gone comes back when it has not been heard of for shared_state.TTL.

local lease_table = require "edge.lease_table"
local lending = require "edge.lending"
local line_table = require "edge.line_table"
local order = require "edge.order"
local redis = require "edge.redis"
local rules = require "edge.rules"
local shared_state = require "edge.shared_state"
local slots = require "edge.slots"

local ipairs = ipairs
local log = ngx.log
local ERR = ngx.ERR
local match = string.match
local max = math.max
local min = math.min
local now = ngx.now
local pairs = pairs
local sleep = ngx.sleep
local sub = string.sub
local timer_at = ngx.timer.at
local tonumber = tonumber

local dict = ngx.shared.edge_slots

-- A need that is not repeated is over so soon (seconds).
local NEED = 0.12
-- Nobody here asks again so soon after others had none: news tell when they have. And the same for what would
-- only be liked.
local ASKED, DRY = 0.1, 0.05
-- How often, and how long apart, a request that would be refused asks whether others have some unused.
local WAITS = { 0.003, 0.008, 0.02, 0.02 }
-- No request waits longer than this for Redis to lend at all.
local PATIENCE = 3
-- Of so many backends at a time other edges are asked for slots; where this begins goes round.
local BACKENDS, ROUND = 8, 1000000


local _M = {}

-- id -> {counted, weight, like}: what this worker is about to ask for.
local needs_cache = {}
local asking = false
-- id -> true: what this worker is about to give back.
local returns_cache = {}
-- lines.lua's, which needs us.
local announce, is_elsewhere
local turn_cache = 0


-- Who hears that something was lent (called with the model), and knows whose turn it is in a line: true when
-- it is another edge's (called with the model and the line's name).
function _M.when_lent(lent, elsewhere)
    announce, is_elsewhere = lent, elsewhere
end


-- What Redis has lent is there for those that wait here.
local function settle(item)
    local id = item.id
    if item.lent and item.lent > 0 and item.lent >= item.need then
        dict:delete("asked:" .. id)

    elseif item.lent == 0 and item.need > 0 then
        dict:safe_set("asked:" .. id, true, ASKED)
    end
    if item.weight == 0 and item.lent ~= item.like then
        item.counted.dry_until = now() + DRY
    end
    local there = item.need == 0 and item.weight > 0 and lending.has_unused(id)
    if item.model and (there or item.lent and item.lent > 0) then
        announce(item.model)
    end
end


-- Asks Redis for a list of {id, counted, weight, like, model}; counted only where the weight is 0.
local function ask_for(list)
    if not redis.usable() or not lending.lock() then
        return
    end
    local missing = {}
    for _, item in ipairs(list) do
        local trimmed = lending.trim(item.id)
        local need_now, lease = lending.missing(item.id, item.weight)
        item.need = need_now
        if item.weight == 0 then
            item.like = max(0, lending.liked(item.id, item.counted.limit) - lease)
        end
        if item.need > 0 or item.like > 0 or trimmed then
            missing[#missing + 1] = item
        end
    end
    lending.exchange_all(missing)
    lending.unlock()
    for _, item in ipairs(list) do
        settle(item)
    end
end


local function ask()
    asking = false
    local list = {}
    for id, one in pairs(needs_cache) do
        list[#list + 1] = {
            id = id, counted = one.counted, weight = one.weight, like = one.like,
            model = one.counted.model,
        }
    end
    needs_cache = {}
    ask_for(list)
end


-- Says that the first of a line needs `weight` more of something, and that `like` more would do good; with a
-- weight of 0 only that there should be some to spare. Does not wait. Whoever needs it says so again as long
-- as he does.
local function need(counted, weight, like, line)
    local id = counted.count_id
    lending.register(counted)
    if weight > 0 then
        dict:safe_set("need:" .. id, weight .. " " .. like .. " " .. line, NEED)
        if dict:get("asked:" .. id) then
            return
        end
    end
    needs_cache[id] = { counted = counted, weight = weight, like = like }
    if asking then
        return
    end
    local ok, err = timer_at(0, ask)
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
    local line = line_table.name(state)
    turn_cache = turn_cache % ROUND + 1
    for i = 1, min(n, BACKENDS) do
        local backend = ready[(turn_cache + i) % n + 1]
        local fitting = not state.pinned or backend.id == state.pinned
        if fitting and backend.lease_key and not slots.has_room(backend, state.weight)
                and not lending.has_all(backend) then
            need(backend, state.weight, like, line)
        end
    end
end


-- Like slots.take, for what is refused when it is not there at once: asks Redis before it says no. Besides
-- false: whether Redis has said so. `hurried`: does not wait until a Redis that came back empty lends at all.
function _M.take(counted, weight, hurried)
    if not counted.lease_key then
        lending.register(counted)
    end
    local tries, over, full = 0, now() + PATIENCE, false
    while not slots.take(counted, weight) do
        tries = tries + 1
        lending.register(counted)
        if counted.lease_key and lending.has_all(counted) then
            return false, true
        end
        if tries > #WAITS or now() > over or not redis.usable() or not lending.lock() then
            return false, full
        end
        local item = { id = counted.count_id, need = lending.missing(counted.count_id, weight), like = 0 }
        lending.exchange({ item })
        lending.unlock()
        full = (item.lent or -1) >= 0
        if item.lent == -1 and hurried then
            return false, false
        end
        if item.lent == -1 then
            tries = 0
        end
        if (item.lent or 0) < item.need then
            sleep(WAITS[tries] or WAITS[#WAITS])
        end
    end
    return true
end


-- What is unused goes back. Whoever needs it next here has to ask.
local function give_back(id)
    if not lending.has_unused(id) or not lending.lock() then
        return
    end
    lending.lower(id, 0)
    dict:delete("asked:" .. id)
    lending.exchange({ { id = id, need = 0, like = 0 } })
    lending.unlock()
end


-- The same soon, for a slot that has just become free while others are before those that wait here. Does not
-- wait.
function _M.return_unused(counted)
    local id = counted.count_id
    if returns_cache[id] then
        return
    end
    -- A worker that is to end may have no timers: then others ask for it.
    returns_cache[id] = timer_at(0, function()
        returns_cache[id] = nil
        give_back(id)
    end)
end


-- The same for all backends that could take a request: others are before it.
function _M.return_all(state)
    local scope = rules.scope(state.model, state.rule)
    for i = 1, scope and scope.ready_count or 0 do
        local backend = scope.ready[i]
        if backend.lease_key and lending.has_unused(backend.count_id) then
            _M.return_unused(backend)
        end
    end
end


-- Some is free of what this edge was short of. It is for whoever is first.
local function ask_again(id)
    local model = lease_table.model_of(id)
    local weight, like, line = match(dict:get("need:" .. id) or "", "^(%d+) (%d+) (.*)$")
    dict:delete("asked:" .. id)
    if line and model and not is_elsewhere(model, line) then
        ask_for({
            { id = id, weight = tonumber(weight), like = tonumber(like), model = model },
        })
    end
end


-- News of something that is lent: another edge is short of it, or (behind a plus) some of it is free.
function _M.hear(news)
    local free, key = match(news, "^(%+?)(.*)$")
    local start = shared_state.key("lease/")
    if sub(key, 1, #start) ~= start then
        return
    end
    local id = sub(key, #start + 1)
    if free == "+" then
        return ask_again(id)
    end
    local model = lease_table.model_of(id)
    if model then
        order.press(model)
    end
    give_back(id)
end


-- The last of what was lent is in use: there should be some for the next one, unless another edge is short.
slots.when_low(function(counted)
    local id, model = counted.count_id, counted.model
    if needs_cache[id] or lending.has_all(counted) or (counted.dry_until or 0) > now() then
        return
    end
    if redis.usable() and not (model and order.pressed(model)) then
        need(counted, 0, 0)
    end
end)


return _M
