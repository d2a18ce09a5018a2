-- Fits a request's body to the engine that gets it: the model's name that the engine knows and, where
-- tokens must be counted, the question for a stream's usage.

local body = require "edge.body"
local json_scan = require "edge.json_scan"
local usage_splice = require "edge.usage_splice"

local find = string.find


local _M = {}


-- The name that the body must get, the client's or its rule's or the engine's own; nil when it may stay
-- as it is.
local function new_name(state, backend)
    if not state.name or state.reported then
        return nil
    end
    local name = backend.served[state.name] and state.name or backend.name
    return name ~= state.sent and name or nil
end


-- In a form. One without the field stays: the engine takes its default.
local function rename_field(field, name)
    if not field then
        return
    end
    local reader, size, close = body.reader()
    body.splice_reader(reader, size, field.first, field.length, name)
    close()
    field.length = #name
end


-- Adds the edit that gives a JSON body this name, also where it has none: an engine would take its
-- default, and a rule may want an adapter. Returns the name's length as it will stand there.
local function edit_name(state, text, edits, name)
    local value = json_scan.encode_string(name)
    local n = #edits + 1
    if state.name_first then
        edits[n] = { first = state.name_first, last = state.name_last, text = value }
        return #value
    end
    local brace = find(text, "{", 1, true)
    local before = '"model":'
    local after = find(text, "^%s*}", brace + 1) and "" or ","
    edits[n] = { first = brace + 1, last = brace, text = before .. value .. after }
    state.name_first = brace + 1 + #before
    return #value
end


local function fit_json(state, name)
    local text, from_file = state.text, state.from_file
    if not text then
        text, from_file = body.text()
    end
    local edits = usage_splice.edits(state, text) or {}
    local first, length = state.name_first, nil
    if name then
        length = edit_name(state, text, edits, name)
    end
    if not edits[1] then
        return
    end
    body.edit(text, from_file, edits)
    if state.name_first then
        -- Where a later engine's name will stand. In a body that had none nothing stands before it.
        local moved = first and json_scan.shift(edits, first) or 0
        length = length or state.name_last - first + 1
        state.name_first = state.name_first + moved
        state.name_last = state.name_first + length - 1
    end
end


-- Called again for another engine, after the first could not be connected to.
function _M.body(state, backend)
    local name = new_name(state, backend)
    state.sent = name or state.sent
    if state.route.kind == "multipart" then
        return name and rename_field(state.field, name)
    end
    if name or usage_splice.wanted(state) then
        return fit_json(state, name)
    end
end


return _M
