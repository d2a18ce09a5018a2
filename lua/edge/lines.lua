-- The lines in which requests wait, over all workers. A ticket has a class and a tag (fair.lua); each
-- worker keeps its own tickets sorted and shows the first of each class to the others (firsts.lua). Only the
-- ticket's own worker serves it, so that no slot is ever on its way between two workers.
--
-- Where several edges share a Redis their tickets have one order too (order.lua).
--
-- A model has one line, and further ones for requests that not every backend of it can take, or may:
-- those would hold up the others.

local counter = require "edge.counter"
local estimate = require "edge.estimate"
local fair = require "edge.fair"
local firsts = require "edge.firsts"
local line_table = require "edge.line_table"
local leases = require "edge.leases"
local order = require "edge.order"
local places = require "edge.places"
local redis = require "edge.redis"
local semaphore = require "ngx.semaphore"
local slots = require "edge.slots"

local add = counter.add
local place_in = fair.place
local CLASSES = fair.CLASSES
local log = ngx.log
local now = ngx.now
local ERR = ngx.ERR
local huge = math.huge
local insert = table.insert
local ipairs = ipairs
local max = math.max
local next, pairs = next, pairs
local remove = table.remove
local wake = firsts.wake

local dict = ngx.shared.edge_queue

-- Where a key's tickets end is forgotten after so many quiet seconds.
local FORGET = 600
-- With so many slots the order between edges has some slack (firsts.lua): as many are under way at once.
local SLACK = 8


local _M = {}

-- Model id -> name of the line -> this worker's waiting requests in it: a sorted array for each class.
local lines_cache = {}
order.watch(lines_cache)


local function set(key, value, ttl, flags)
    local ok, err = dict:safe_set(key, value, ttl or 0, flags or 0)
    if not ok then
        log(ERR, "edge: lines: could not store ", key, ": ", err)
    end
    return ok
end


local function count(key, value)
    return add(dict, key, value)
end


-- How many sequences the backends of a model take together.
local function capacity(model)
    local sum = 0
    for _, backend in ipairs(model.backends) do
        sum = sum + (backend.limit or huge)
    end
    return sum
end


local function line_of(state)
    local id = state.model.id
    local lines = lines_cache[id]
    if not lines then
        lines = {}
        lines_cache[id] = lines
    end
    local name = line_table.name(state)
    local line = lines[name]
    if not line then
        line = line_table.build(id, name, redis.options() ~= nil)
        line.slack = capacity(state.model) >= SLACK
        lines[name] = line
    end
    return line
end


-- Another ticket stands at a place of a list.
local function show(line, list, place)
    if place == 1 then
        firsts.show(list)
    end
    order.changed(line, place)
end


local function forget(line)
    for class = 1, CLASSES do
        if line[class][1] then
            return
        end
    end
    local lines = lines_cache[line.model]
    lines[line.name] = nil
    if not next(lines) then
        lines_cache[line.model] = nil
    end
end


-- A new ticket: its tag, the end of its key's tickets, its number (nil: the next one here), and where that
-- end stands. One order over all edges if there is a Redis; yields then.
local function ticket_of(state, class)
    local line = line_table.build(state.model.id, line_table.name(state), true)
    local list = line[class]
    local finish = list.finish .. (state.key and state.key.name or "")
    local cost = estimate.prompt(state) + estimate.answers(state) + 1
    local weight = state.key and state.key.weight or 1
    local tag, ends, number = order.ticket(line, list, finish, cost / weight, FORGET)
    if tag then
        set(line.last, max(number, dict:get(line.last) or 0))
        return tag, ends, number, finish
    end
    tag, ends = fair.tag(dict:get(list.virtual) or 0, dict:get(finish) or 0, cost, weight)
    return tag, ends, nil, finish
end


-- Puts a request of a class into its line, one more among the `counted`. nil and why when there is no
-- place. Nothing is taken before the last moment that may yield: the client may leave then.
function _M.join(state, counted, class, deadline)
    local share = state.key and places.share_of(counted, state.key)
    local ok, why = places.room(counted, share)
    if not ok then
        return nil, why
    end
    local since = now()
    local tag, ends, number, finish = ticket_of(state, class)
    ok, why = places.take(counted, class, share)
    if not ok then
        if number then
            order.refund(finish, ends - tag)
        end
        return nil, why
    end
    local line = line_of(state)
    local list = line[class]
    set(finish, ends, FORGET)
    local waiter = {
        line = line,
        list = list,
        tag = tag,
        number = number or count(line.last, 1) or 0,
        finish = finish,
        share = share,
        span = ends - tag,
        counted = counted,
        since = since,
        until_ = deadline,
        freed = false,       -- what queue.lua last knew, and when it asks anyway
        turn = false,
        ask_at = 0,
        poll = false,        -- how long it sleeps until it looks again
        bell = semaphore.new(0),
    }
    local place = place_in(list, waiter)
    insert(list, place, waiter)
    show(line, list, place)
    state.ticket = waiter
    state.place = slots.in_flight(counted)
    return waiter
end


-- Takes a request out of its line, however it goes on; `served`: it has got a slot.
function _M.leave(state, served)
    local waiter = state.ticket
    state.ticket = false
    state.waited = state.waited + max(0, now() - waiter.since)
    local line, list = waiter.line, waiter.list
    places.leave(waiter.counted, list.number, waiter.share)
    if served then
        if waiter.tag > (dict:get(list.virtual) or 0) then
            set(list.virtual, waiter.tag)
        end
        order.served(line, list.number, waiter.tag)

    else
        -- Its key pays for what is served, not for what has left.
        dict:incr(waiter.finish, -waiter.span)
        order.refund(waiter.finish, waiter.span)
    end
    local place = place_in(list, waiter)
    remove(list, place)
    show(line, list, place)
    if place == 1 then
        wake(list)
    end
    -- Only now: who looks because of it must see who is first after this one.
    if served then
        count(line.turn, 1)

    elseif place == 1 then
        count(line.freed, 1)
    end
    forget(line)
end


-- Says in all workers that a model may have room again, and wakes those in front in this one.
function _M.announce(model_id)
    count(line_table.freed(model_id), 1)
    for _, line in pairs(lines_cache[model_id] or {}) do
        for class = 1, CLASSES do
            wake(line[class])
        end
    end
end


-- Two numbers that change when a model may have room again, or whoever was first is gone; and when a request
-- of the line is served, here or in another edge.
function _M.news(line)
    local freed = dict:get(line.freed) or 0
    if line.changed then
        freed = freed + (dict:get(line.changed) or 0)
    end
    return freed, dict:get(line.turn) or 0
end


-- Whether it is another edge's turn in a line; nil when nobody is seen to wait in it at all.
function _M.is_elsewhere(model_id, name)
    local lines = lines_cache[model_id]
    return firsts.is_elsewhere(lines and lines[name] or line_table.build(model_id, name, true))
end


leases.when_lent(_M.announce, _M.is_elsewhere)


return _M
