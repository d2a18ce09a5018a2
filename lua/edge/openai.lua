-- Every error that a client sees, in the shape its API promises: OpenAI's, or Anthropic's on
-- /v1/messages.

local json_scan = require "edge.json_scan"
local utf8 = require "edge.utf8"

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
    message = utf8.clean(message)
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
    local uri = state and state.path or ngx.var.request_uri or ""
    return match(uri, "^/v1/messages") and "anthropic" or "openai"
end


-- Ends the request with an error of the edge's own. `more`: param, retry_after (seconds), allow,
-- authenticate, no_retry.
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
        header["WWW-Authenticate"] = more.authenticate
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


return _M
