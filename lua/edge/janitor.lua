-- Twice a second one worker looks for workers that are gone and takes back what they held. No
-- heartbeat: a draining worker's timers stop, yet it lives and holds slots.

local slots = require "edge.slots"
local workers = require "edge.workers"

local every = ngx.timer.every
local log = ngx.log
local ERR = ngx.ERR
local WARN = ngx.WARN

local dict = ngx.shared.edge_state

local INTERVAL = 0.5


local _M = {}


local function sweep(premature)
    if premature or not dict:add("janitor", true, INTERVAL - 0.05) then
        return
    end

    workers.each_gone(function(pid, orderly)
        local freed = slots.reap(pid)
        if not orderly then
            log(WARN, "edge: janitor: worker ", pid, " ended without its log phase; ", freed,
                " slots freed")
        end
    end)
end


function _M.init_worker()
    local ok, err = every(INTERVAL, sweep)
    if not ok then
        log(ERR, "edge: janitor: could not start: ", err)
    end
end


return _M
