-- Tells Redis of the lines here. While requests wait in a worker it shows its first tickets, whenever they
-- change, and now and then in any case: what an edge does not repeat is soon forgotten. Redis answers with
-- the first ones of the other edges (order_news.lua).

local fair = require "edge.fair"
local news = require "edge.order_news"
local redis = require "edge.redis"
local scripts = require "edge.order_scripts"
local semaphore = require "ngx.semaphore"
local shared_state = require "edge.shared_state"

local concat = table.concat
local format = string.format
local log = ngx.log
local max = math.max
local min = math.min
local next, pairs = next, pairs
local sleep = ngx.sleep
local timer_at = ngx.timer.at
local worker_pid = ngx.worker.pid
local ERR = ngx.ERR

local CLASSES, DEPTH = fair.CLASSES, news.DEPTH
-- Seconds between two exchanges at least: while requests wait in other edges too, and while none do; what
-- changes in between is told at once. At most. And while Redis does not answer.
local PAUSE, LONE_PAUSE, BEAT, AWAY = 0.003, 0.04, 0.08, 0.05
-- Redis keeps what is served last so long after the last ticket (seconds).
local KEEP = 600
-- In one call of Redis, and as many refunds as wait for it.
local CHUNK, REFUNDS = 50, 1000


local _M = {}

-- Name of a line -> line: what Redis shall hear of.
local changed_cache = {}
-- Name of a line -> {line, turns, [class] = tag}: what was served here and Redis does not know yet.
local served_cache = {}
-- {where a key's tickets end, by how much they end earlier}
local refunds_cache = {}
-- Rings when something has changed; there while this worker exchanges.
local bell
-- Model id -> name -> line, as lines.lua has them.
local lines_cache


-- lines.lua gives its lines.
function _M.watch(lines)
    lines_cache = lines
    news.watch(lines)
end


-- The name of a thing of the lines in Redis.
local function key_of(name)
    return shared_state.key("line/" .. name)
end


-- This worker's first tickets in a line, as the others get them; "" for none.
local function shown(line)
    local words, some = {}, false
    for class = 1, CLASSES do
        for place = 1, DEPTH do
            local waiter = line[class][place]
            words[#words + 1] = waiter and format("%.14g %d", waiter.tag, waiter.number) or "- -"
            some = some or waiter ~= nil
        end
    end
    return some and concat(words, " ") or ""
end


-- Exchanges a list of lines. nil when Redis does not answer; then nothing is forgotten.
local function exchange(list)
    local n = #list
    local args, at = { "", "", 5 * n }, 3 + 5 * n
    args[at + 1], args[at + 2], args[at + 3] = shared_state.name(), worker_pid(), news.SHOWN * 1000
    args[at + 4], args[at + 5] = KEEP, shared_state.key("news/")
    at = at + 5
    local sent = {}
    for i = 1, n do
        local line = list[i]
        local facts = served_cache[line.name]
        changed_cache[line.name], served_cache[line.name] = nil, nil
        sent[i] = facts or false
        local k, a = 5 * i - 1, at + 6 * i - 5
        args[k], args[k + 1] = key_of("firsts:" .. line.name), key_of(line.turn)
        args[a], args[a + 1], args[a + 2] = line.name, shown(line), facts and facts.turns or 0
        for class = 1, CLASSES do
            args[k + 1 + class] = key_of(line[class].virtual)
            args[a + 2 + class] = format("%.14g", facts and facts[class] or 0)
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
        news.learn(list[i], reply[i])
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


-- What Redis is to hear: all lines in which requests wait here, or those that have changed.
local function gather(all)
    local list, seen = {}, {}
    local function take(line)
        if not seen[line.name] then
            seen[line.name] = true
            list[#list + 1] = line
        end
    end
    for _, line in pairs(changed_cache) do
        take(line)
    end
    for _, lines in pairs(all and lines_cache or {}) do
        for _, line in pairs(lines) do
            take(line)
        end
    end
    for name, facts in pairs(served_cache) do
        local lines = lines_cache[facts.line.model]
        take(lines and lines[name] or facts.line)
    end
    return list
end


-- Whether some of these lines are contested.
local function sync(list)
    for first = 1, #list, CHUNK do
        local part = {}
        for i = first, min(first + CHUNK - 1, #list) do
            part[#part + 1] = list[i]
        end
        if not exchange(part) then
            return false
        end
    end
    if #refunds_cache > 0 then
        send_refunds()
    end
    for i = 1, #list do
        if news.contested(list[i]) then
            return true
        end
    end
    return false
end


local function run()
    local all = true
    repeat
        if redis.usable() then
            sleep(sync(gather(all)) and PAUSE or LONE_PAUSE)
            all = not bell:wait(BEAT)

        else
            sleep(AWAY)
            all = true
        end
    until not next(lines_cache) and (not next(changed_cache) and not next(served_cache) or not redis.usable())
    bell = nil
end


-- Somebody has begun to wait here, or has been served.
local function wake()
    if bell then
        if bell:count() < 1 then
            bell:post(1)
        end
        return
    end
    bell = semaphore.new(0)
    local ok, err = timer_at(0, run)
    if not ok then
        bell = nil
        log(ERR, "edge: order: could not start: ", err)
    end
end


function _M.changed(line)
    changed_cache[line.name] = line
    wake()
end


function _M.served(line, class, tag)
    local facts = served_cache[line.name]
    if not facts then
        facts = { line = line, turns = 0, 0, 0, 0 }
        served_cache[line.name] = facts
    end
    facts.turns = facts.turns + 1
    facts[class] = max(facts[class], tag)
    wake()
end


function _M.refund(finish, span)
    if #refunds_cache < REFUNDS then
        refunds_cache[#refunds_cache + 1] = { key_of(finish), format("%.14g", span) }
    end
end


_M.key = key_of


return _M
