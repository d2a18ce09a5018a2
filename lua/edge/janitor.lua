-- Twice a second one worker looks for workers that are gone and takes back what they held. No
-- heartbeat: a draining worker's timers stop, yet it lives and holds slots.

local metrics = require "edge.metrics"
local slots = require "edge.slots"
local workers = require "edge.workers"

local every = ngx.timer.every
local ipairs, next, pairs = ipairs, next, pairs
local log = ngx.log
local sleep = ngx.sleep
local ERR = ngx.ERR
local WARN = ngx.WARN

local dict = ngx.shared.edge_state

local INTERVAL = 0.5
local LOOKS = 3


local _M = {}


-- A worker that was killed between its two counts leaves a total that nobody owns. The others count
-- all the time, so only a difference that stays is one.
local function repair(ids)
    local drifts = {}
    for look = 1, LOOKS do
        local pids = workers.pids()
        for id in pairs(ids) do
            local drift = slots.drift(id, pids)
            drifts[id] = (look == 1 or drifts[id] == drift) and drift or 0
        end
        sleep(0.01)
    end
    for id, drift in pairs(drifts) do
        if drift ~= 0 then
            slots.correct(id, drift)
            log(WARN, "edge: janitor: corrected the count of ", id, " by ", -drift)
        end
    end
end


local function sweep(premature)
    if premature or not dict:add("janitor", true, INTERVAL - 0.05) then
        return
    end

    local used = {}
    workers.each_gone(function(pid, orderly)
        local freed, ids = slots.reap(pid)
        metrics.add(metrics.counter("reaped"), freed)
        if orderly then
            return
        end
        metrics.add(metrics.counter("deaths"), 1)
        log(WARN, "edge: janitor: worker ", pid, " ended without its log phase; ", freed,
            " slots freed")
        for _, id in ipairs(ids) do
            used[id] = true
        end
    end)
    if next(used) then
        repair(used)
    end
end


function _M.init_worker()
    local ok, err = every(INTERVAL, sweep)
    if not ok then
        log(ERR, "edge: janitor: could not start: ", err)
    end
end


return _M
