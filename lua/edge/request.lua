-- What a request asks for: reads the body, finds the model that it names, refuses what must not
-- pass. Functions that refuse return nil, status, code, message, more (see openai.refuse).

local body = require "edge.body"
local json_scan = require "edge.json_scan"
local multipart = require "edge.multipart"

local ngx = ngx
local clear = require "table.clear"
local concat = table.concat
local find = string.find
local lower = string.lower
local sort = table.sort

local states = ngx.shared.edge_state

-- Top-level members that routing depends on: an engine and the edge must never read different ones.
local WANTED = { model = true, stream = true, kv_transfer_params = true }
local FIELDS = { model = true, kv_transfer_params = true }
local MAX_LISTED = 20


local _M = {}

-- Byte ranges of the body being scanned; a scan does not yield, so one pair per worker is enough.
local starts_cache, stops_cache = {}, {}


local function known_names(fleet)
    local names, n = {}, 0
    for name in pairs(fleet.names) do
        n = n + 1
        names[n] = name
    end
    sort(names)
    local more = n > MAX_LISTED and " and " .. n - MAX_LISTED .. " more (GET /v1/models lists all)" or ""
    return concat(names, ", ", 1, n < MAX_LISTED and n or MAX_LISTED) .. more
end


-- The model that a name stands for: from the fleet, or an adapter that an engine says it has
-- loaded.
function _M.resolve(fleet, name)
    local id = fleet.names[name]
    if not id then
        id = states:get("name:" .. name)
    end
    return id and fleet.models[id]
end


-- The model for a name that may be absent (nil).
local function choose_model(state, fleet, name)
    if name == nil or name == "" then
        local default = fleet.default_model
        if not default then
            return nil, 400, "model_required", "The request names no model. Set \"model\" to one of: "
                .. known_names(fleet) .. ".", { param = "model" }
        end
        state.model = fleet.models[default]
        state.name = false
        return true
    end

    local model = _M.resolve(fleet, name)
    if not model then
        if #name > 128 then
            name = name:sub(1, 128) .. "..."
        end
        return nil, 404, "model_not_found", "The model '" .. name .. "' does not exist. Known models: "
            .. known_names(fleet) .. ".", { param = "model" }
    end
    state.model = model
    state.name = name
    -- An adapter that only the engines know has no other name.
    state.reported = fleet.names[name] == nil
    return true
end


local function check_json_headers()
    local encoding = ngx.var.http_content_encoding
    if encoding and encoding ~= "" and lower(encoding) ~= "identity" then
        return nil, 415, "unsupported_encoding", "Request bodies with Content-Encoding '"
            .. (encoding:match("^[%w, _-]+$") or "?") .. "' are not accepted. Send the body uncompressed."
    end
    return true
end


local function refuse_transfer()
    return nil, 400, "field_not_allowed", "The field 'kv_transfer_params' is not accepted from clients:"
        .. " it names hosts and cache blocks of the engines.", { param = "kv_transfer_params" }
end


-- Finds the model of a JSON request. Sets state.model and state.name, and state.splice when the
-- body must change once the backend is known: a function of the name that the engine wants.
local function from_json(state, fleet)
    local text, from_file = body.text()
    if not text then
        return nil, 500, "edge_error", from_file
    end
    local starts, stops = starts_cache, stops_cache
    local ok, err, code = json_scan.scan(text, WANTED, starts, stops)
    if not ok then
        body.forget(#text)
        return nil, 400, code, err
    end
    if starts.kv_transfer_params then
        return refuse_transfer()
    end

    local first, last = starts.model, stops.model
    local name
    if first then
        local kind = json_scan.kind(text, first)
        if kind == "string" then
            name = json_scan.string_value(text, first, last)
        end
        if not name and kind ~= "null" then
            return nil, 400, "invalid_model", "The field 'model' must be a string that names a model.",
                { param = "model" }
        end
    end

    local status, message, more
    ok, status, code, message, more = choose_model(state, fleet, name)
    if not ok then
        return nil, status, code, message, more
    end
    if state.name then
        state.text, state.from_file, state.name_first, state.name_last = text, from_file, first, last
    end
    state.body_size = #text
    return true
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
    if fields.kv_transfer_params then
        return refuse_transfer()
    end
    local field = fields.model
    local ok, status, code2, message2, more = choose_model(state, fleet, field and field.value)
    if not ok then
        return nil, status, code2, message2, more
    end
    state.field = field and field.value ~= "" and field or false
    state.body_size = 0
    return true
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
        return nil, 411, "length_required", "The request needs a Content-Length header."
    end
    if multi then
        return from_multipart(state, fleet, content_type)
    end
    return from_json(state, fleet)
end


-- Gives the engine the name it knows, when the client's name is another one.
function _M.rename(state, backend)
    if not state.name or state.reported or backend.served[state.name]
        or not (state.text or state.field)
    then
        return
    end
    if state.text then
        body.splice_text(state.text, state.from_file, state.name_first, state.name_last,
                         json_scan.encode_string(backend.name))
        return
    end
    local reader, size, close = body.reader()
    body.splice_reader(reader, size, state.field.first, state.field.length, backend.name)
    close()
end


-- Drops the body from Lua's memory: nginx holds what goes to the engine.
function _M.forget(state)
    state.text = false
    clear(starts_cache)
    clear(stops_cache)
    body.forget(state.body_size)
end


return _M
