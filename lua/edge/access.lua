-- The way in: path, body, model, backend, slot. One way, no way back.

local body = require "edge.body"
local dispatch = require "edge.dispatch"
local fit = require "edge.fit"
local fleet = require "edge.fleet"
local keys = require "edge.keys"
local limits = require "edge.limits"
local live = require "edge.live"
local models = require "edge.models"
local openai = require "edge.openai"
local queue = require "edge.queue"
local refusal = require "edge.refusal"
local request = require "edge.request"
local responses = require "edge.responses"
local routes = require "edge.routes"
local rules = require "edge.rules"
local slots = require "edge.slots"
local utf8 = require "edge.utf8"

local ngx = ngx
local get_method = ngx.req.get_method


local _M = {}


-- A browser's question before a call from another origin.
local function preflight()
    ngx.header["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
    ngx.header["Access-Control-Allow-Headers"] =
        ngx.var.http_access_control_request_headers or "Authorization, Content-Type"
    ngx.header["Access-Control-Max-Age"] = 600
    ngx.status = 204
    return ngx.exit(204)
end


-- The backend that made a stored response; with only one engine in the fleet that one, unless a
-- response belongs to somebody.
local function response_backend(state, current, id)
    local backend = current.backends[responses.backend(id, state.key) or ""]
    local only = not state.key and #current.list == 1 and current.list[1]
    if not backend and only and #only.backends == 1 then
        backend = only.backends[1]
    end
    if backend and rules.sees(state.rule, current, backend) then
        state.model = current.models[backend.model]
        return backend
    end
end


local function unknown_response(id)
    return 404, "response_not_found", "No response '" .. utf8.clip(id, 128)
        .. "' is known here. Responses are kept by the engine that made them, for an hour at most."
end


local function to_response(state, current, id)
    local backend = response_backend(state, current, id)
    if not backend then
        return openai.refuse(state, unknown_response(id))
    end
    if not backend.address then
        return openai.refuse(state, refusal.of(state, "none"))
    end
    if get_method() == "POST" and not body.read() then
        return openai.refuse(state, 411, "length_required", body.NO_LENGTH)
    end
    state.pinned = backend.id
    -- To ask for an answer or to cancel it starts nothing: that must not wait behind what does.
    slots.force(backend, state.weight)
    state.slot = backend
    return dispatch.first(state, backend)
end


-- The engine that made the response which this request continues: it alone has the conversation.
-- False when that is another key's.
local function pin(state, current)
    local id = state.previous and responses.backend(state.previous, state.key)
    if state.previous and not id and state.key and state.route.makes_responses then
        return false
    end
    local backend = current.backends[id or ""]
    if backend and backend.model == state.model.id and backend.address
        and rules.sees(state.rule, current, backend)
    then
        state.pinned = backend.id
    end
    return true
end


local function to_model(state, current)
    if current.count_usage then
        state.count_usage = true
    end
    local ok, status, code, message, more = request.read(state, current)
    if not ok then
        return openai.refuse(state, status, code, message, more)
    end
    ok, status, code, message, more = keys.check_model(state)
    if not ok then
        request.forget(state)
        return openai.refuse(state, status, code, message, more)
    end
    if not pin(state, current) then
        request.forget(state)
        return openai.refuse(state, unknown_response(state.previous))
    end
    ok, status, code, message, more = limits.admit(state)
    if not ok then
        request.forget(state)
        return openai.refuse(state, status, code, message, more)
    end
    local backend
    backend, status, code, message, more = queue.take(state)
    if not backend then
        request.forget(state)
        return openai.refuse(state, status, code, message, more)
    end
    fit.body(state, backend)
    request.forget(state)
    return dispatch.first(state, backend)
end


function _M.run()
    local state = live.begin()
    local method = get_method()
    local var = ngx.var
    state.id = var.edge_request_id
    local current = fleet.current()
    local path = current.rules and rules.follow(state, current.rules, var) or var.uri
    local route, id = routes.find(path)
    if not route then
        return openai.refuse(state, 404, "path_not_found", "This path is not served. GET /v1/models lists"
            .. " the models; requests go to paths such as /v1/chat/completions.")
    end
    state.route = route
    if not route.methods[method] then
        if method == "OPTIONS" and (var.edge_cors_origin or "") ~= "" then
            return preflight()
        end
        return openai.refuse(state, 405, "method_not_allowed", "Use " .. route.allow .. " on this path.",
            { allow = route.allow })
    end

    if live.full() then
        return openai.refuse(state, 503, "edge_busy", "The edge has no free connection. Try again shortly.",
            { retry_after = 1 })
    end

    if current.keys then
        local ok, status, code, message, more = keys.admit(state)
        if not ok then
            return openai.refuse(state, status, code, message, more)
        end
    end
    local kind = route.kind
    if kind == "json" or kind == "multipart" then
        return to_model(state, current)

    elseif kind == "response" then
        return to_response(state, current, id)
    end
    return models.answer(state, current, id)
end


return _M
