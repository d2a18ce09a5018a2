-- Whose turn it is in a line. Each worker shows the others in a dictionary which of its tickets is the first
-- of each class; beside those stands the first of all other edges (order_sync.lua). What a dead worker
-- showed is removed by whoever it holds up.

local fair = require "edge.fair"
local workers = require "edge.workers"

local before = fair.before
local CLASSES = fair.CLASSES
local log = ngx.log
local match = string.match
local max = math.max
local now = ngx.now
local tonumber = tonumber
local worker_pid = ngx.worker.pid
local ERR = ngx.ERR

local dict = ngx.shared.edge_queue

-- How long the list of workers is good for (seconds).
local WORKERS_TTL = 0.05
-- How long the first ticket of other edges may be overtaken (seconds).
local OVERTAKEN = 0.05


local _M = {}

local pids_cache, pids_until = {}, 0


local function pids_of_all()
    local time = now()
    if time >= pids_until then
        pids_cache, pids_until = workers.pids(), time + WORKERS_TTL
    end
    return pids_cache
end


-- Shows the others which of this worker's tickets of a class is the first.
function _M.show(list)
    local waiter = list[1]
    local key = list.first .. worker_pid()
    if not waiter then
        dict:delete(key)
        return
    end
    -- It outlives its request only when the worker is killed; then not for long.
    local ok, err = dict:safe_set(key, waiter.tag, max(waiter.until_, now()) - now() + 1, waiter.number)
    if not ok then
        log(ERR, "edge: firsts: could not show ", key, ": ", err)
    end
end


-- Wakes the first of this worker's tickets of a class.
function _M.wake(list)
    local waiter = list[1]
    if waiter and waiter.bell:count() < 1 then
        waiter.bell:post(1)
    end
end


-- The first ticket that other workers of this edge show in a class: tag, number and the worker.
local function shown_here(list)
    local pids, self = pids_of_all(), worker_pid()
    local first, first_number, whose
    for i = 1, #pids do
        local pid = pids[i]
        local tag, number = dict:get(list.first .. pid)
        if tag and pid ~= self and (not first or before(tag, number or 0, first, first_number)) then
            first, first_number, whose = tag, number or 0, pid
        end
    end
    return first, first_number, whose
end


-- Whether a ticket of another worker here stands before `mine` (nil: this worker has none) in a class.
local function is_behind_worker(list, mine)
    while true do
        local tag, number, pid = shown_here(list)
        if not tag or mine and not before(tag, number, mine.tag, mine.number) then
            return false
        end
        if not workers.is_gone(pid) then
            return true
        end
        dict:delete(list.first .. pid)
    end
end


-- The same for tickets of other edges (as order_news.lua has noted them). What they show comes some
-- milliseconds late: if each edge waited for all that is before its own, only one request would be served at
-- a time, however many slots there are. So in a line with slack up to two others may be before `mine`, for a
-- moment.
local function is_behind_edge(line, list, mine)
    local shown = list.others and dict:get(list.others)
    if not shown then
        return false
    end
    if not mine then
        return true
    end
    local tag, number, since, third, third_number = match(shown, "^(%S+) (%S+) (%S+) (%S+) (%S+)$")
    if not before(tonumber(tag), tonumber(number), mine.tag, mine.number) then
        return false
    end
    if not line.slack or now() - tonumber(since) > OVERTAKEN then
        return true
    end
    return third ~= "-" and before(tonumber(third), tonumber(third_number), mine.tag, mine.number)
end


-- The ticket of this worker that is to be served now; nil when it is another worker's turn.
function _M.front(line)
    local classes = fair.order(dict:get(line.turn) or 0)
    for i = 1, CLASSES do
        local list = line[classes[i]]
        local mine = list[1]
        if is_behind_worker(list, mine) or is_behind_edge(line, list, mine) then
            return nil
        end
        if mine then
            return mine
        end
    end
end


-- Whether it is the turn of another edge's ticket; nil when nobody is seen to wait at all.
function _M.is_elsewhere(line)
    local classes = fair.order(dict:get(line.turn) or 0)
    for i = 1, CLASSES do
        local list = line[classes[i]]
        local tag, number = shown_here(list)
        local mine = list[1]
        if tag and (not mine or before(tag, number, mine.tag, mine.number)) then
            mine = { tag = tag, number = number }
        end
        if is_behind_edge(line, list, mine) then
            return true
        end
        if mine then
            return false
        end
    end
end


return _M
