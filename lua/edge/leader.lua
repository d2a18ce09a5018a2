-- Which worker looks after the engines: one at a time. A leader that is gone is replaced at once,
-- one that hangs when its claim runs out.

local workers = require "edge.workers"

local exiting = ngx.worker.exiting
local worker_pid = ngx.worker.pid

local dict = ngx.shared.edge_state

local KEY = "prober"
-- Seconds that a claim lasts; the leader renews it several times a second.
local CLAIM = 3


local _M = {}


-- True when this worker leads; and whether it has only now begun to.
function _M.leads()
    local pid = worker_pid()
    local leader = dict:get(KEY)
    if exiting() then
        if leader == pid then
            dict:delete(KEY)
        end
        return false, false
    end
    if leader == pid then
        return dict:safe_set(KEY, pid, CLAIM) == true, false
    end
    if leader and not workers.is_gone(leader) then
        return false, false
    end
    if leader then
        dict:delete(KEY)
    end
    local ok = dict:safe_add(KEY, pid, CLAIM) == true
    return ok, ok
end


return _M
