-- Sets the peer that dispatch chose. One try each: what happens after a failed connect is
-- dispatch's as well (see failure.lua), so that every backend can follow every other.

local balancer = require "ngx.balancer"
local live = require "edge.live"

local ngx = ngx
local log = ngx.log
local ERR = ngx.ERR
local set_current_peer = balancer.set_current_peer
local set_timeouts = balancer.set_timeouts

-- nginx answers 502 for it.
local BUSY = -3


local _M = {}


function _M.run()
    local state = live.get()
    local model, backend = state.model, state.backend
    local ok, err = set_timeouts(model.connect, model.send, model.read)
    if not ok then
        log(ERR, "edge: balancer: could not set time-outs: ", err)
    end
    ok, err = set_current_peer(backend.address, backend.port)
    if not ok then
        log(ERR, "edge: balancer: could not set peer ", backend.address, ": ", err)
        return ngx.exit(BUSY)
    end
end


return _M
