-- Hands a request to a backend whose slot it has: name in the body, what the engine's side needs,
-- and the location that proxies there. The same way for the first backend and, after a failed
-- connect, for the next one, whatever name, scheme or key that one has.

local fit = require "edge.fit"
local metrics = require "edge.metrics"
local probe = require "edge.probe"
local queue = require "edge.queue"
local request = require "edge.request"
local retry_budget = require "edge.retry_budget"

local ngx = ngx
local exec = ngx.exec
local now = ngx.now
local set_uri = ngx.req.set_uri

-- A request is offered to at most this many engines: refused connections must not become a storm.
local MAX_TRIES = 3
-- The same proxying as in the location that the request is in first.
local HTTP_LOCATION = "@engine_http"


local _M = {}

-- Model id -> this worker's share of the model's retries.
local budgets_cache = {}


local function budget_of(model)
    local budget = budgets_cache[model.id]
    if not budget then
        budget = retry_budget.new(now())
        budgets_cache[model.id] = budget
    end
    return budget
end


local function assign(state, backend)
    state.backend = backend
    state.tries = state.tries + 1
end


-- Goes to the location that proxies to this backend, and does not return.
local function go(backend)
    if backend.tls_location then
        local var = ngx.var
        var.edge_upstream = backend.tls_upstream
        var.edge_ssl_name = backend.host
    end
    return exec(backend.tls_location or HTTP_LOCATION)
end


-- The first backend, its slot taken. Returns to let the location that we are in proxy, or goes to
-- another one.
function _M.first(state, backend)
    assign(state, backend)
    retry_budget.earn(budget_of(state.model))
    local var = ngx.var
    if backend.authorization then
        var.edge_authorization = backend.authorization
    end
    if backend.host_header then
        var.edge_host = backend.host_header
    end
    -- proxy_pass sends the address as the client wrote it: make it the one that was allowed.
    local uri = state.path or var.uri
    if var.request_uri ~= uri then
        set_uri(uri)
    end
    if backend.tls_location then
        return go(backend)
    end
end


-- After nothing could be connected to: goes to the next backend and does not return, or returns
-- when there is none (or the request belongs to one engine alone).
function _M.again(state)
    local failed = state.backend
    metrics.add(metrics.counter("connect_failures", "model", state.model.id, "backend", failed.id), 1)
    probe.connect_failed(failed, state.model)
    queue.release(state)
    local tried = state.tried or {}
    state.tried = tried
    tried[failed.id] = true
    if state.pinned or state.tries >= MAX_TRIES then
        return
    end
    if not retry_budget.spend(budget_of(state.asked or state.model), now()) then
        state.unretried = true
        return
    end
    local backend = queue.take(state)
    if not backend then
        return
    end

    assign(state, backend)
    fit.body(state, backend)
    request.forget(state)
    ngx.var.edge_authorization = backend.authorization or ""
    ngx.var.edge_host = backend.host_header or "engine"
    -- Else nginx would answer with the 502 that brought us here, whatever the engine says.
    ngx.status = ngx.HTTP_OK
    return go(backend)
end


return _M
