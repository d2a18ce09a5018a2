-- The lines in which requests wait, over all workers: tickets with numbers, and a head that says which
-- number is next. Only the ticket's own worker serves it, so that no slot is ever on its way between
-- two workers. What a dead worker leaves are tickets, and whoever looks at the head steps over them.
--
-- A model has one line, and further ones for requests that not every backend of it can take, or may:
-- those would hold up the others.

local semaphore = require "ngx.semaphore"
local slots = require "edge.slots"
local workers = require "edge.workers"

local log = ngx.log
local now = ngx.now
local worker_pid = ngx.worker.pid
local ERR = ngx.ERR
local insert = table.insert
local max = math.max
local next, pairs = next, pairs
local remove = table.remove

local dict = ngx.shared.edge_queue


local _M = {}

-- Model id -> name of the line -> this worker's waiting requests in it, in order.
local lines_cache = {}


-- Not incr with an initial value: that would evict when the dictionary is full.
local function count_up(key)
    local new, err = dict:incr(key, 1)
    if not new and err == "not found" then
        dict:safe_add(key, 0)
        new, err = dict:incr(key, 1)
    end
    return new, err
end


local function line_name(state)
    if state.pinned then
        return "backend/" .. state.pinned
    end
    local pool = state.rule and state.rule.pool
    return (pool and "pool/" .. pool .. "/" or "")
        .. (state.reported and "adapter/" .. state.name .. "/" or "model/") .. state.model.id
end


local function line_of(state)
    local id = state.model.id
    local lines = lines_cache[id]
    if not lines then
        lines = {}
        lines_cache[id] = lines
    end
    local name = line_name(state)
    local line = lines[name]
    if not line then
        line = {
            model = id,
            name = name,
            head = "head:" .. name,
            last = "last:" .. name,
            ticket = "ticket:" .. name .. ":",
        }
        lines[name] = line
    end
    return line
end


-- The first of a line, which may be empty after a failed join.
local function wake(line)
    local waiter = line[1]
    if waiter and waiter.bell:count() < 1 then
        waiter.bell:post(1)
    end
end


-- Whether `number` is to be served now. Steps over tickets of those that left or died.
function _M.is_front(line, number)
    local head = dict:get(line.head) or 1
    local at = head
    while at < number do
        local pid = dict:get(line.ticket .. at)
        -- The caller is the first of its own worker: an earlier ticket of that pid is a dead one's.
        if pid and pid ~= worker_pid() and not workers.is_gone(pid) then
            break
        end
        at = at + 1
    end
    if at ~= head then
        local ok, err = dict:safe_set(line.head, at)
        if not ok then
            log(ERR, "edge: lines: could not move ", line.head, ": ", err)
        end
    end
    -- Beyond it: the head has passed a number whose ticket was not written yet.
    return at >= number
end


-- Puts a request at the end of its line, one more among the `counted`. nil when there is no place.
function _M.join(state, counted)
    if not slots.take(counted, 1) then
        return nil
    end
    local line = line_of(state)
    local number, err = count_up(line.last)
    local ok = number
    if ok then
        -- A ticket outlives its request only when its worker is killed; then not for long.
        ok, err = dict:safe_set(line.ticket .. number, worker_pid(), state.model.wait + 1)
    end
    if not ok then
        log(ERR, "edge: lines: could not write a ticket: ", err)
        slots.release(counted, 1)
        return nil
    end
    local waiter = {
        line = line,
        number = number,
        counted = counted,
        since = now(),
        freed = false,       -- what queue.lua last knew of freed slots, and when it asks anyway
        ask_at = 0,
        bell = semaphore.new(0),
    }
    insert(line, waiter)
    state.ticket = waiter
    return waiter
end


-- Takes a request out of its line, however it goes on.
function _M.leave(state)
    local waiter = state.ticket
    state.ticket = false
    state.waited = state.waited + max(0, now() - waiter.since)
    local line = waiter.line
    dict:delete(line.ticket .. waiter.number)
    slots.release(waiter.counted, 1)

    local at = 1
    while line[at] ~= waiter do
        at = at + 1
    end
    remove(line, at)
    if line[1] then
        if at == 1 then
            wake(line)
        end
        return
    end
    local lines = lines_cache[line.model]
    lines[line.name] = nil
    if not next(lines) then
        lines_cache[line.model] = nil
    end
end


-- Says in all workers that a model may have room again, and wakes those in front in this one.
function _M.announce(model_id)
    count_up("freed:" .. model_id)
    for _, line in pairs(lines_cache[model_id] or {}) do
        wake(line)
    end
end


-- Grows with every announcement.
function _M.announced(model_id)
    return dict:get("freed:" .. model_id) or 0
end


return _M
