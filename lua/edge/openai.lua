-- Every error that a client sees, in the shape its API promises: OpenAI's, or Anthropic's on
-- /v1/messages.

local json_scan = require "edge.json_scan"
local live = require "edge.live"

local ngx = ngx
local encode_string = json_scan.encode_string
local match = string.match


local _M = {}

local OPENAI_TYPE = {
    [400] = "invalid_request_error", [401] = "authentication_error", [403] = "permission_error",
    [404] = "invalid_request_error", [405] = "invalid_request_error",
    [413] = "invalid_request_error", [415] = "invalid_request_error", [429] = "rate_limit_error",
}
local ANTHROPIC_TYPE = {
    [400] = "invalid_request_error", [401] = "authentication_error", [403] = "permission_error",
    [404] = "not_found_error", [413] = "request_too_large", [429] = "rate_limit_error",
    [503] = "overloaded_error",
}


-- Written by hand: one order of keys, and no escaped slashes, on every cjson.
local function render(dialect, status, code, message, param)
    if dialect == "anthropic" then
        local kind = ANTHROPIC_TYPE[status] or (status < 500 and "invalid_request_error")
            or "api_error"
        return '{"type":"error","error":{"type":"' .. kind .. '","message":' .. encode_string(message)
            .. ',"code":"' .. code .. '"}}'
    end
    local kind = OPENAI_TYPE[status] or (status < 500 and "invalid_request_error") or "server_error"
    return '{"error":{"message":' .. encode_string(message) .. ',"type":"' .. kind .. '","param":'
        .. (param and encode_string(param) or "null") .. ',"code":"' .. code .. '"}}'
end


local function dialect_of(state)
    if state and state.route then
        return state.route.dialect
    end
    local uri = ngx.var.request_uri or ""
    return match(uri, "^/v1/messages") and "anthropic" or "openai"
end


-- Ends the request with an error of the edge's own. `more`: param, retry_after (seconds), allow,
-- no_retry.
function _M.refuse(state, status, code, message, more)
    if state then
        state.error = code
    end
    local body = render(dialect_of(state), status, code, message, more and more.param)
    ngx.status = status
    local header = ngx.header
    header["Content-Type"] = "application/json"
    header["Content-Length"] = #body
    if more then
        header["Retry-After"] = more.retry_after
        header["Allow"] = more.allow
        -- The official clients retry 5xx by themselves; here that would run a long generation
        -- again.
        header["x-should-retry"] = more.no_retry and "false" or nil
    end
    ngx.print(body)
    return ngx.exit(ngx.HTTP_OK)
end


-- A JSON answer of the edge's own that is no error.
function _M.answer(body)
    local header = ngx.header
    header["Content-Type"] = "application/json"
    header["Content-Length"] = #body
    ngx.print(body)
    return ngx.exit(ngx.HTTP_OK)
end


-- What nginx refuses by itself: status -> code, message, more.
local NGINX = {
    [400] = { "bad_request", "The request could not be read: its headers or its first line are malformed." },
    [404] = { "path_not_found", "This path is not served." },
    [408] = { "request_timeout", "The request did not arrive in time." },
    [411] = { "length_required", "The request needs a Content-Length header." },
    [413] = { "body_too_large", "The request body is larger than this server accepts" },
    [414] = { "uri_too_long", "The address is too long." },
    [429] = {
        "too_many_requests", "Too many requests or connections from this address. Try again shortly.",
        { retry_after = 1 },
    },
    [505] = { "bad_request", "This version of HTTP is not spoken here." },
    [431] = { "headers_too_large", "The request headers are too large." },
    [497] = { "tls_required", "This port speaks HTTPS: use https:// in the address." },
    [500] = { "edge_error", "The edge failed to handle this request; its error log says why." },
    [503] = { "edge_busy", "The edge has no free connection. Try again shortly.", { retry_after = 1 } },
}


-- An engine that failed before it answered: nginx made it 502 or 504.
local function engine_failed(state, status)
    local connected = match(ngx.var.upstream_connect_time or "", "([^, ]+)$") or "-"
    local backend = state.backend.id
    if connected == "-" then
        return _M.refuse(state, 502, "engine_unreachable",
            "No connection to an engine of model '" .. state.model.id .. "' (last tried: " .. backend
            .. "). Nothing was started; try again shortly.", { retry_after = 2 })
    end
    if status == 504 then
        return _M.refuse(state, 504, "engine_timeout", "The engine " .. backend .. " sent nothing for "
            .. state.model.read .. " s. The request may still be running there.", { no_retry = true })
    end
    return _M.refuse(state, 502, "engine_failed", "The engine " .. backend
        .. " closed the connection before it answered.")
end


-- The one error location: nginx's own 4xx and 5xx as JSON.
function _M.nginx_error()
    local state = live.get() or live.begin()
    local status = ngx.status
    if state and state.backend and (status == 502 or status == 504) then
        return engine_failed(state, status)
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
    return _M.refuse(state, status, known[1], message, known[3])
end


return _M
