-- The running requests of all workers, for an operator to see and to end. A worker publishes its
-- own when somebody asks, and looks then which of them are to end: twice a second at the least by
-- its timer; a draining worker, which has none, when bytes of a stream pass.

local cjson = require "cjson.safe"
local live = require "edge.live"
local workers = require "edge.workers"

local concat = table.concat
local every = ngx.timer.every
local exiting = ngx.worker.exiting
local floor = math.floor
local huge = math.huge
local ipairs = ipairs
local log = ngx.log
local match = string.match
local max = math.max
local now = ngx.now
local pairs = pairs
local sleep = ngx.sleep
local sort = table.sort
local tonumber = tonumber
local worker_pid = ngx.worker.pid
local ERR = ngx.ERR

local dict = ngx.shared.edge_requests

local TICK = 0.1
-- So many requests are shown, the oldest first.
local MOST = 1000
-- Seconds that workers get to answer, and that what they answered is kept.
local PATIENCE, KEPT = 1, 10
-- A draining worker may notice only when its next byte comes.
local CANCEL_KEPT = 600


local _M = {
    -- When stream.lua has to call tick: never, except in a draining worker.
    due = huge,
}

local asked_cache, cancels_cache = 0, 0


local function set(key, value, ttl)
    local ok, err = dict:safe_set(key, value, ttl)
    if not ok then
        log(ERR, "edge: live_view: could not store ", key, ": ", err)
    end
end


local function state_of(state)
    if state.ticket then
        return "queued"
    end
    if not state.backend then
        return "reading"
    end
    return state.first and "decode" or "prefill"
end


local function older(a, b)
    return a.started < b.started
end


-- This worker's requests, for whoever asked for the `asked`th time.
local function publish(asked)
    local list, n = {}, 0
    for _, state in pairs(live.all()) do
        n = n + 1
        list[n] = state
    end
    sort(list, older)
    local parts, time = {}, now()
    for i = 1, math.min(n, max(50, floor(MOST / ngx.worker.count()))) do
        local state = list[i]
        parts[i] = cjson.encode({
            id = state.id or "",
            key = state.key and state.key.name or cjson.null,
            model = state.model and state.model.id or cjson.null,
            backend = state.backend and state.backend.id or cjson.null,
            state = state_of(state),
            age = floor((time - state.started) * 1000 + 0.5) / 1000,
            chunks = state.chunks,
        })
    end
    set("live:" .. worker_pid(), asked .. " " .. n .. " [" .. concat(parts, ",") .. "]", KEPT)
end


-- Marks those of this worker's requests that are to end: a queued one wakes up, a running one is cut
-- at its next byte.
local function mark_cancelled(cancels)
    for _, state in pairs(live.all()) do
        local asked_at = state.id and dict:get("cancel:" .. state.id)
        -- A later request may have the same id: clients choose them.
        if asked_at and asked_at >= state.started and not state.cancelled then
            state.cancelled = true
            set("found:" .. state.id, state_of(state), KEPT)
            local ticket = state.ticket
            if ticket and ticket.bell:count() < 1 then
                ticket.bell:post(1)
            end
        end
    end
    cancels_cache = cancels
    set("acked:" .. worker_pid(), cancels, KEPT)
end


-- Does what was asked for since the last call.
function _M.tick()
    local asked = dict:get("asked")
    if asked and asked ~= asked_cache then
        asked_cache = asked
        publish(asked)
    end
    local cancels = dict:get("cancels")
    if cancels and cancels ~= cancels_cache then
        mark_cancelled(cancels)
    end
    if exiting() then
        _M.due = now() + TICK
    end
end


-- Waits until each worker has written `key`PID with `number` in front; returns the texts by pid, and
-- the pids of those that have not.
local function collect(key, number)
    local deadline = now() + PATIENCE
    while true do
        local texts, silent, wait = {}, {}, false
        for _, worker in ipairs(workers.list()) do
            local text = tostring(dict:get(key .. worker.pid) or "")
            if (tonumber(match(text, "^%d+")) or 0) >= number then
                texts[#texts + 1] = text

            else
                silent[#silent + 1] = worker.pid
                wait = wait or not worker.exiting
            end
        end
        if not wait or now() >= deadline then
            return texts, silent
        end
        sleep(0.01)
    end
end


local function older_first(a, b)
    return a.age > b.age
end


-- The running requests of all workers: JSON {"requests", "total", "truncated", "silent_workers"}.
function _M.list()
    local asked, err = dict:incr("asked", 1, 0)
    if not asked then
        return nil, err
    end
    local texts, silent = collect("live:", asked)
    local all, total = {}, 0
    for _, text in ipairs(texts) do
        local count, list = match(text, "^%d+ (%d+) (.*)$")
        total = total + count
        for _, request in ipairs(cjson.decode(list) or {}) do
            all[#all + 1] = request
        end
    end
    sort(all, older_first)
    local parts = {}
    for i = 1, math.min(#all, MOST) do
        parts[i] = cjson.encode(all[i])
    end
    return '{"requests":[' .. concat(parts, ",") .. '],"total":' .. total
        .. ',"truncated":' .. (total > #parts and "true" or "false")
        .. ',"silent_workers":[' .. concat(silent, ",") .. "]}"
end


-- Ends the requests with this id. Returns what the found one was doing; or nil, and whether a worker
-- has not answered yet (it drains, and will see it at its next byte).
function _M.cancel(id)
    dict:delete("found:" .. id)
    ngx.update_time()
    set("cancel:" .. id, now(), CANCEL_KEPT)
    local number = dict:incr("cancels", 1, 0)
    local _, silent = collect("acked:", number or 0)
    local doing = dict:get("found:" .. id)
    if doing then
        return doing
    end
    return nil, #silent > 0
end


function _M.init_worker()
    local ok, err = every(TICK, function(premature)
        if premature then
            _M.due = 0
        end
        _M.tick()
    end)
    if not ok then
        log(ERR, "edge: live_view: could not start: ", err)
    end
end


return _M
