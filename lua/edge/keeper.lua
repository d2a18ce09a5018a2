-- Keeps an edge in touch with Redis: once a second one worker says that the edge is there and balances its
-- leases; while Redis is silent it looks more often. One worker listens for other edges that are short.
-- A draining worker does its part as long as it has requests: they still hold slots.

local fleet = require "edge.fleet"
local leases = require "edge.leases"
local lending = require "edge.lending"
local live = require "edge.live"
local order_news = require "edge.order_news"
local redis = require "edge.redis"
local shared_state = require "edge.shared_state"
local workers = require "edge.workers"

local byte = string.byte
local every = ngx.timer.every
local exiting = ngx.worker.exiting
local log = ngx.log
local now = ngx.now
local pairs = pairs
local sleep = ngx.sleep
local timer_at = ngx.timer.at
local worker_pid = ngx.worker.pid
local ERR = ngx.ERR

local dict = ngx.shared.edge_state

-- News of the order begin with this.
local ORDER = byte("=")
-- Seconds: between two looks, and between two words to Redis.
local LOOK, INTERVAL = 0.25, 1
local TURN, LISTENER = "redis/turn", "redis/listener"
-- Seconds that one call for news waits (and a worker that is to end for it), and that the claim to be
-- the listener lasts.
local NEWS, CLAIM = 0.2, 5
-- Set while leases are this edge's own share, which Redis does not know.
local ON_OWN = "redis/on own"


local _M = {}


-- Count ids of the fleet's backends, as a set.
local function backends()
    local ids = {}
    for _, backend in pairs(fleet.current().backends) do
        ids[backend.count_id] = true
    end
    return ids
end


local function speak()
    local down = redis.down_since()
    local ok, anew = shared_state.beat()
    if ok then
        ok = lending.refresh(anew or dict:get(ON_OWN), backends())
    end
    if ok and down then
        dict:delete(ON_OWN)
        shared_state.mend()

    elseif not ok then
        down = down or redis.down_since() or now()
        dict:safe_set(ON_OWN, true)
        lending.on_own(now() - down >= shared_state.TTL)
    end
end


-- Of the order of those that wait, or of what is lent.
local function hear(news)
    if byte(news) == ORDER then
        order_news.hear(news)

    else
        leases.hear(news)
    end
end


local function listen()
    local pid, key = worker_pid(), shared_state.key("news/" .. shared_state.name())
    while redis.usable() and dict:get(LISTENER) == pid and (not exiting() or live.count() > 0) do
        dict:safe_set(LISTENER, pid, CLAIM)
        local news = redis.wait({ "BLPOP", key, NEWS }, NEWS)
        if news == nil then
            break
        end
        if news then
            hear(news[2])
        end
    end
    if dict:get(LISTENER) == pid then
        dict:delete(LISTENER)
    end
end


local function look()
    local listener = dict:get(LISTENER)
    if listener and workers.is_gone(listener) then
        dict:delete(LISTENER)
    end
    if redis.usable() and dict:safe_add(LISTENER, worker_pid(), CLAIM) then
        local ok, err = timer_at(0, listen)
        if not ok then
            log(ERR, "edge: keeper: could not listen: ", err)
        end
    end
    local pause = redis.usable() and INTERVAL or LOOK
    if dict:safe_add(TURN, true, pause - 0.05) then
        speak()
    end
end


-- A worker that is to end has no other timers.
local function drain()
    while live.count() > 0 do
        look()
        sleep(LOOK)
    end
end


local function tick(premature)
    if not premature then
        return look()
    end
    local ok, err = timer_at(0, drain)
    if not ok then
        log(ERR, "edge: keeper: could not go on while draining: ", err)
    end
end


function _M.init_worker()
    if not redis.options() then
        return
    end
    -- The first at once: without leases nothing runs.
    local ok, err = timer_at(0, look)
    if ok then
        ok, err = every(LOOK, tick)
    end
    if not ok then
        log(ERR, "edge: keeper: could not start: ", err)
    end
end


return _M
