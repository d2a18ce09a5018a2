-- What nginx gives up by itself: its own 4xx and 5xx as JSON, and a connect that failed, which
-- goes on to the next engine.

local dispatch = require "edge.dispatch"
local fleet = require "edge.fleet"
local live = require "edge.live"
local openai = require "edge.openai"
local rules = require "edge.rules"

local ngx = ngx
local match = string.match
local refuse = openai.refuse


local _M = {}

-- status -> code, message, more
local NGINX = {
    [400] = {
        "bad_request", "The request could not be read: its headers or its first line are malformed.",
    },
    [404] = { "path_not_found", "This path is not served." },
    [408] = { "request_timeout", "The request did not arrive in time." },
    [411] = { "length_required", "The request needs a Content-Length header." },
    [413] = { "body_too_large", "The request body is larger than this server accepts" },
    [414] = { "uri_too_long", "The address is too long." },
    [429] = {
        "too_many_requests", "Too many requests or connections from this address. Try again shortly.",
        { retry_after = 1 },
    },
    [431] = { "headers_too_large", "The request headers are too large." },
    [497] = { "tls_required", "This port speaks HTTPS: use https:// in the address." },
    [500] = { "edge_error", "The edge failed to handle this request; its error log says why." },
    [505] = { "bad_request", "This version of HTTP is not spoken here." },
}


-- An engine that failed before it answered: nginx made it 502 or 504.
local function engine_failed(state, status)
    -- The last of a list with one entry per try; "-" when nothing was connected (or TLS failed).
    local connected = match(ngx.var.upstream_connect_time or "", "([^, :]+)$") or "-"
    if connected == "-" then
        dispatch.again(state)
        return refuse(state, 502, "engine_unreachable",
            "No connection to an engine of model '" .. state.model.id .. "' (last tried: "
            .. state.backend.id .. "). Nothing was started; try again shortly.", { retry_after = 2 })
    end
    local backend = state.backend.id
    if status == 504 then
        return refuse(state, 504, "engine_timeout", "The engine " .. backend .. " sent nothing for "
            .. state.model.read .. " s. The request may still be running there.", { no_retry = true })
    end
    return refuse(state, 502, "engine_failed", "The engine " .. backend
        .. " ended the connection or sent something unreadable before it answered. The request may"
        .. " have been started; it was not sent to another engine.")
end


function _M.run()
    local state = live.get() or live.begin()
    local status = ngx.status
    if state.backend and (status == 502 or status == 504) then
        return engine_failed(state, status)
    end
    local list = not state.route and fleet.current().rules
    if list then
        rules.follow(state, list, ngx.var)  -- the path tells whose shape of errors it wants
    end
    local known = NGINX[status] or {
        status < 500 and "bad_request" or "edge_error",
        status < 500 and "The request was refused." or "The edge could not serve this request.",
    }
    if status >= 495 and status <= 497 then
        status = 400
    end
    local message = known[2]
    if status == 413 then
        message = message .. " (" .. ngx.var.edge_max_body .. " bytes)."
    end
    return refuse(state, status, known[1], message, known[3])
end


return _M
