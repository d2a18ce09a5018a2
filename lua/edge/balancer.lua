-- Sets the peer that access chose; after a failed connect the next one. Nothing else is ever sent
-- twice.

local balancer = require "ngx.balancer"
local live = require "edge.live"
local pick = require "edge.pick"
local probe = require "edge.probe"
local slots = require "edge.slots"

local ngx = ngx
local log = ngx.log
local ERR = ngx.ERR
local recreate_request = balancer.recreate_request
local set_current_peer = balancer.set_current_peer
local set_more_tries = balancer.set_more_tries
local set_timeouts = balancer.set_timeouts


local _M = {}


-- Moves the request's slot to another backend after a failed connect.
local function move(state)
    local last = state.backend
    if state.spare == 0 then
        -- A kept connection had closed under a GET: nginx asks again, for the same engine.
        return last
    end
    probe.connect_failed(last, state.model)
    local tried = state.tried
    if not tried then
        tried = {}
        state.tried = tried
    end
    tried[last.id] = true

    local backend = pick.next(state.model, last, tried)
    if not backend then
        return nil
    end
    slots.release(last)
    slots.take(backend)
    state.slot, state.backend = backend, backend

    if last.authorization ~= backend.authorization or last.host_header ~= backend.host_header then
        ngx.var.edge_authorization = backend.authorization or ""
        ngx.var.edge_host = backend.host_header or "engine"
        local ok, err = recreate_request()
        if not ok then
            log(ERR, "edge: balancer: could not write the request anew: ", err)
            return nil
        end
    end
    return backend
end


function _M.run()
    local state = live.get()
    local backend = state.backend
    state.tries = state.tries + 1
    if state.tries > 1 then
        backend = move(state)
        if not backend then
            return ngx.exit(ngx.ERROR)
        end

    elseif state.spare > 0 then
        set_more_tries(state.spare)
    end

    local model = state.model
    local ok, err = set_timeouts(model.connect, model.send, model.read)
    if not ok then
        log(ERR, "edge: balancer: could not set time-outs: ", err)
    end
    ok, err = set_current_peer(backend.address, backend.port)
    if not ok then
        log(ERR, "edge: balancer: could not set peer ", backend.address, ": ", err)
        return ngx.exit(ngx.ERROR)
    end
end


return _M
