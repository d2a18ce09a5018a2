-- One order for those that wait in several edges. A ticket gets its tag and number from Redis. While
-- requests wait in a worker, it shows Redis its first tickets every few milliseconds and puts the first
-- ones of other edges into the dictionary, beside those of the workers here (lines.lua): whoever sees one
-- before its own does not take what is free. What other edges showed is forgotten soon when they do not
-- repeat it.

local fair = require "edge.fair"
local redis = require "edge.redis"
local scripts = require "edge.order_scripts"
local shared_state = require "edge.shared_state"

local concat = table.concat
local format = string.format
local log = ngx.log
local ERR = ngx.ERR
local max = math.max
local next, pairs = next, pairs
local sleep = ngx.sleep
local timer_at = ngx.timer.at
local tonumber = tonumber
local worker_pid = ngx.worker.pid

local dict = ngx.shared.edge_queue

local CLASSES = fair.CLASSES
-- Seconds between two exchanges, while Redis does not answer, and that a ticket counts once shown.
local PAUSE, AWAY, SHOWN = 0.008, 0.05, 0.2
-- In one call of Redis, and as many refunds as wait for it.
local CHUNK, REFUNDS = 50, 1000
-- How long a model stays pressed once another edge was short of its slots.
local PRESSED = 0.1


local _M = {}

-- Name of a line -> {line, turns, [class] = tag}: what was served here and Redis does not know yet.
local served_cache = {}
-- {where a key's tickets end, by how much they end earlier}
local refunds_cache = {}
local running = false
-- Model id -> name -> line, as lines.lua has them.
local lines_cache


-- lines.lua gives its lines.
function _M.watch(lines)
    lines_cache = lines
end


local function key_of(name)
    return shared_state.key("line/" .. name)
end


-- The tag, the end and the number of a new ticket; nil when this edge is alone, or without Redis for now.
-- Yields.
function _M.ticket(line, list, finish, span, keep)
    if not redis.options() or not redis.usable() then
        return nil
    end
    local reply = redis.eval(scripts.ticket, {
        "", "", 3, key_of(list.virtual), key_of(finish), key_of(line.last),
        format("%.14g", dict:get(list.virtual) or 0), dict:get(line.last) or 0, format("%.14g", span), keep,
        format("%.14g", dict:get(finish) or 0),
    })
    if not reply then
        return nil
    end
    return tonumber(reply[1]), tonumber(reply[2]), reply[3]
end


-- This worker's first tickets in a line, as the others get them; "" for none.
local function show(line)
    local words, some = {}, false
    for class = 1, CLASSES do
        local waiter = line[class][1]
        words[class] = waiter and format("%.14g %d", waiter.tag, waiter.number) or "- -"
        some = some or waiter ~= nil
    end
    return some and concat(words, " ") or ""
end


-- What Redis says of a line: ten words from reply[at].
local function learn(line, reply, at)
    dict:safe_set(line.turn, tonumber(reply[at]))
    for class = 1, CLASSES do
        local list = line[class]
        local served = tonumber(reply[at + class])
        if served > (dict:get(list.virtual) or 0) then
            dict:safe_set(list.virtual, served)
        end
        local tag, number = tonumber(reply[at + 2 + 2 * class]), tonumber(reply[at + 3 + 2 * class])
        if tag then
            dict:safe_set(list.others, tag, SHOWN, number)

        else
            dict:delete(list.others)
        end
    end
end


-- Exchanges a list of lines. nil when Redis does not answer; then nothing is forgotten.
local function exchange(list)
    local edge = shared_state.name() .. "/"
    local args, n = { "", "", 5 * #list }, #list
    local at = 3 + 5 * n
    args[at + 1], args[at + 2], args[at + 3], args[at + 4] = edge, edge .. worker_pid(), SHOWN * 1000, 600
    at = at + 4
    local sent = {}
    for i = 1, n do
        local line = list[i]
        local facts = served_cache[line.name]
        served_cache[line.name] = nil
        sent[i] = facts or false
        local k, a = 5 * i - 1, at + 5 * i - 4
        args[k], args[k + 1] = key_of("firsts:" .. line.name), key_of(line.turn)
        args[a], args[a + 1] = show(line), facts and facts.turns or 0
        for class = 1, CLASSES do
            args[k + 1 + class] = key_of(line[class].virtual)
            args[a + 1 + class] = format("%.14g", facts and facts[class] or 0)
        end
    end
    local reply = redis.eval(scripts.sync, args)
    if not reply then
        for i = 1, n do
            served_cache[list[i].name] = served_cache[list[i].name] or sent[i] or nil
        end
        return nil
    end
    for i = 1, n do
        learn(list[i], reply, 10 * i - 9)
    end
    return true
end


local function send_refunds()
    local n = #refunds_cache
    local args = { "", "", n }
    for i = 1, n do
        args[3 + i], args[3 + n + i] = refunds_cache[i][1], refunds_cache[i][2]
    end
    refunds_cache = {}
    return redis.eval(scripts.refund, args)
end


-- The lines in which requests wait here, and those of which Redis does not know all.
local function gather()
    local list, seen = {}, {}
    for _, lines in pairs(lines_cache) do
        for name, line in pairs(lines) do
            list[#list + 1] = line
            seen[name] = true
        end
    end
    for name, facts in pairs(served_cache) do
        if not seen[name] then
            list[#list + 1] = facts.line
        end
    end
    return list
end


local function sync_all()
    local list = gather()
    for first = 1, #list, CHUNK do
        local part = {}
        for i = first, math.min(first + CHUNK - 1, #list) do
            part[#part + 1] = list[i]
        end
        if not exchange(part) then
            return
        end
    end
    if #refunds_cache > 0 then
        send_refunds()
    end
end


local function run()
    repeat
        local usable = redis.usable()
        if usable then
            sync_all()
        end
        sleep(usable and PAUSE or AWAY)
    until not next(lines_cache) and (not next(served_cache) or not redis.usable())
    running = false
end


-- Somebody has begun to wait here, or has been served.
local function wake()
    if running then
        return
    end
    local ok, err = timer_at(0, run)
    if not ok then
        log(ERR, "edge: order: could not start: ", err)
        return
    end
    running = true
end


function _M.joined()
    if redis.options() then
        wake()
    end
end


-- A ticket of a class (by its number) has been served.
function _M.served(line, class, tag)
    if not redis.options() then
        return
    end
    local facts = served_cache[line.name]
    if not facts then
        facts = { line = line, turns = 0, 0, 0, 0 }
        served_cache[line.name] = facts
    end
    facts.turns = facts.turns + 1
    facts[class] = max(facts[class], tag)
    wake()
end


-- A ticket has left unserved.
function _M.refund(finish, span)
    if redis.options() and #refunds_cache < REFUNDS then
        refunds_cache[#refunds_cache + 1] = { key_of(finish), format("%.14g", span) }
    end
end


-- Whether requests wait in a line of other edges too.
function _M.contested(line)
    for class = 1, CLASSES do
        if dict:get(line[class].others) then
            return true
        end
    end
    return false
end


-- Another edge is short of a model's slots: who comes new stands in line, though nobody waits here.
function _M.press(model_id)
    dict:safe_set("pressed:" .. model_id, true, PRESSED)
end


function _M.pressed(model_id)
    return redis.options() ~= nil and dict:get("pressed:" .. model_id) == true
end


return _M
