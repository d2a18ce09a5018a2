-- What a request asks for: reads the body, finds the model that it names, refuses what must not
-- pass. Functions that refuse return nil, status, code, message, more (see openai.refuse).

local body = require "edge.body"
local json_scan = require "edge.json_scan"
local key_table = require "edge.key_table"
local multipart = require "edge.multipart"
local rules = require "edge.rules"
local traits = require "edge.traits"
local usage_splice = require "edge.usage_splice"
local utf8 = require "edge.utf8"

local ngx = ngx
local clear = require "table.clear"
local concat = table.concat
local find = string.find
local lower = string.lower
local sort = table.sort

-- Top-level members that routing depends on, or that must not pass: an engine and the edge must
-- never read different ones.
local WANTED = {
    model = true, stream = true, stream_options = "last", previous_response_id = true,
    kv_transfer_params = true, ec_transfer_params = true, vllm_xargs = true,
}
for _, name in ipairs(traits.WANTED) do
    WANTED[name] = "last"
end
-- vLLM takes these for its own: they name hosts and cache blocks of the engines.
local FORBIDDEN = { "kv_transfer_params", "ec_transfer_params" }
local NESTED = { kv_transfer_params = true, ec_transfer_params = true }
local FIELDS = { model = true, kv_transfer_params = true, ec_transfer_params = true }
local MAX_LISTED = 20


local _M = {}

-- Byte ranges of the body being scanned; a scan does not yield, so one pair per worker is enough.
local starts_cache, stops_cache = {}, {}
local nested_starts_cache, nested_stops_cache = {}, {}


-- The names that a request may use, for people.
local function known_names(state, fleet)
    local names, n = {}, 0
    for name, model in pairs(fleet.names) do
        local its = fleet.models[model]
        if key_table.allows(state.key, its) and rules.scope(its, state.rule) then
            n = n + 1
            names[n] = name
        end
    end
    sort(names)
    local more = n > MAX_LISTED and " and " .. n - MAX_LISTED .. " more (GET /v1/models lists all)" or ""
    return concat(names, ", ", 1, n < MAX_LISTED and n or MAX_LISTED) .. more
end


-- The model that a name stands for: from the fleet, or an adapter that an engine says it has
-- loaded.
function _M.resolve(fleet, name)
    return fleet.models[fleet.names[name] or fleet.adapters[name]]
end


-- The model must have a backend that this request may see.
local function check_scope(state, fleet)
    if rules.scope(state.model, state.rule) then
        return true
    end
    return nil, 404, "model_not_found", "The model '" .. state.model.id .. "' has no engine in pool '"
        .. state.rule.pool .. "', which this request may use. Models there: " .. known_names(state, fleet)
        .. ".", { param = "model" }
end


-- The model for a name that may be absent; a rule's own name replaces it.
local function choose_model(state, fleet, name)
    state.sent = name or false
    name = state.rule and state.rule.model or name
    if not name or name == "" then
        local default = fleet.default_model
        if not default then
            return nil, 400, "model_required", "The request names no model. Set \"model\" to one of: "
                .. known_names(state, fleet) .. ".", { param = "model" }
        end
        state.model = fleet.models[default]
        state.name = false
        return check_scope(state, fleet)
    end

    local model = _M.resolve(fleet, name)
    if not model then
        return nil, 404, "model_not_found", "The model '" .. utf8.clip(name, 128)
            .. "' does not exist. Known models: " .. known_names(state, fleet) .. ".", { param = "model" }
    end
    state.model = model
    state.name = name
    -- An adapter that only the engines know has no other name.
    state.reported = fleet.names[name] == nil
    return check_scope(state, fleet)
end


local function check_json_headers()
    local encoding = ngx.var.http_content_encoding
    if encoding and encoding ~= "" and lower(encoding) ~= "identity" then
        return nil, 415, "unsupported_encoding", "Request bodies with Content-Encoding '"
            .. (encoding:match("^[%w, _-]+$") or "?") .. "' are not accepted. Send the body uncompressed."
    end
    return true
end


-- Refuses what only engines may tell each other. `found` has a value for each member that is there.
local function check_forbidden(found)
    for _, name in ipairs(FORBIDDEN) do
        if found[name] then
            return nil, 400, "field_not_allowed", "The field '" .. name .. "' is not accepted from clients:"
                .. " it names hosts and cache blocks of the engines.", { param = name }
        end
    end
    return true
end


-- vLLM copies the members of vllm_xargs to where it reads the forbidden ones.
local function check_extra(text, first, last)
    if json_scan.kind(text, first) ~= "object" then
        return true
    end
    local starts = nested_starts_cache
    local ok, err, code = json_scan.scan(text:sub(first, last), NESTED, starts, nested_stops_cache)
    if not ok then
        return nil, 400, code, "In vllm_xargs: " .. err
    end
    return check_forbidden(starts)
end


-- The name in a body: nil when there is none (null counts as none).
local function name_of(text, first, last)
    local kind = json_scan.kind(text, first)
    local name = kind == "string" and json_scan.string_value(text, first, last) or nil
    if kind == "null" or name and utf8.valid(name) then
        return true, name
    end
    return nil, 400, "invalid_model", "The field 'model' must be a string that names a model.",
        { param = "model" }
end


-- Finds the model of a JSON request, and where its name stands in case an engine needs another.
local function from_json(state, fleet)
    local text, from_file = body.text()
    if not text then
        return nil, 500, "edge_error", from_file
    end
    state.text, state.from_file, state.body_size = text, from_file, #text
    local starts, stops = starts_cache, stops_cache
    local ok, err, code = json_scan.scan(text, WANTED, starts, stops, traits.elements)
    if not ok then
        return nil, 400, code, err
    end

    local status, message, more
    ok, status, code, message, more = check_forbidden(starts)
    if ok and starts.vllm_xargs then
        ok, status, code, message, more = check_extra(text, starts.vllm_xargs, stops.vllm_xargs)
    end
    if not ok then
        return nil, status, code, message, more
    end

    local first, last = starts.model, stops.model
    local name
    if first then
        ok, name, code, message, more = name_of(text, first, last)
        if not ok then
            return nil, name, code, message, more
        end
    end
    local previous = starts.previous_response_id
    if previous then
        state.previous = json_scan.string_value(text, previous, stops.previous_response_id) or false
    end
    state.name_first, state.name_last = first, last
    ok, status, code, message, more = choose_model(state, fleet, name)
    if ok then
        usage_splice.note(state, text, starts, stops)
        traits.read(state, text, starts, stops)
    end
    return ok, status, code, message, more
end


-- Finds the model of a multipart request, wherever in the body its field stands.
local function from_multipart(state, fleet, content_type)
    local boundary, err = multipart.boundary(content_type)
    if not boundary then
        return nil, 400, "invalid_multipart", err
    end
    local reader, size, close = body.reader()
    if not reader then
        return nil, 500, "edge_error", size
    end
    local fields, message, code = multipart.find(reader, size, boundary, FIELDS)
    close()
    if not fields then
        return nil, 400, code or "invalid_multipart", message
    end
    local ok, status, more
    ok, status, code, message, more = check_forbidden(fields)
    if not ok then
        return nil, status, code, message, more
    end
    state.field = fields.model or false
    return choose_model(state, fleet, state.field and state.field.value)
end


-- Reads the body of a JSON or multipart route and finds its model.
function _M.read(state, fleet)
    local ok, status, code, message = check_json_headers()
    if not ok then
        return nil, status, code, message
    end
    local content_type = ngx.var.content_type or ""
    local multi = state.route.kind == "multipart"
    local wanted = multi and "multipart/form-data" or "application/json"
    if content_type ~= wanted and not find(lower(content_type), wanted, 1, true) then
        return nil, 415, "unsupported_media_type", "This path takes " .. wanted
            .. ". Set the Content-Type header accordingly."
    end

    if not body.read() then
        return nil, 411, "length_required", body.NO_LENGTH
    end
    local found, more
    found, status, code, message, more = (multi and from_multipart or from_json)(state, fleet, content_type)
    if not found then
        _M.forget(state)
    end
    return found, status, code, message, more
end


-- Drops the body from Lua's memory: nginx holds what goes to the engine.
function _M.forget(state)
    state.text = false
    clear(starts_cache)
    clear(stops_cache)
    body.forget(state.body_size)
end


return _M
