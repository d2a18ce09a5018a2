-- The phases of nginx, one line each. `init` requires every module, so that a broken one stops a
-- start or a reload: `nginx -t` never runs Lua.

local access = require "edge.access"
local admin = require "edge.admin"
local budgets = require "edge.budgets"
local balancer = require "edge.balancer"
local finish = require "edge.finish"
local failure = require "edge.failure"
local fleet = require "edge.fleet"
local gauges = require "edge.gauges"
local janitor = require "edge.janitor"
local keeper = require "edge.keeper"
local keys = require "edge.keys"
local limits = require "edge.limits"
local live = require "edge.live"
local live_view = require "edge.live_view"
local metrics = require "edge.metrics"
local probe = require "edge.probe"
local redis = require "edge.redis"
local shared_state = require "edge.shared_state"
local stream = require "edge.stream"
local workers = require "edge.workers"


local _M = {
    access = access.run,
    admin = admin.run,
    balancer = balancer.run,
    body_filter = stream.run,
    header_filter = stream.header,
    error = failure.run,
    log = finish.run,
}


-- `options.connections`: worker_connections of nginx.conf; `options.version`: Signalbox's;
-- `options.redis`: what redis.init takes.
function _M.init(options)
    live.init(options.connections)
    gauges.init(options.version)
    workers.init()
    redis.init(options.redis)
    shared_state.init()
    limits.init()
    keys.init(fleet.init())
    budgets.init()
    admin.init()
end


function _M.init_worker()
    workers.init_worker()
    metrics.init_worker()
    janitor.init_worker()
    budgets.init_worker()
    keeper.init_worker()
    probe.init_worker()
    live_view.init_worker()
end


function _M.exit_worker()
    metrics.flush()
    budgets.save()
    workers.exit_worker()
end


return _M
