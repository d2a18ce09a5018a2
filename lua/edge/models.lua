-- GET /v1/models and /v1/models/{id}: from the fleet and from what the engines last reported; no
-- engine is asked now.

local json_scan = require "edge.json_scan"
local key_table = require "edge.key_table"
local openai = require "edge.openai"
local request = require "edge.request"
local rules = require "edge.rules"
local states = require "edge.states"
local utf8 = require "edge.utf8"

local concat = table.concat
local encode_string = json_scan.encode_string
local ipairs = ipairs
local sort = table.sort


local _M = {}


local function entry(name, owner, facts)
    local parts = {
        '"id":' .. encode_string(name), '"object":"model"',
        '"created":' .. (facts.created or 0), '"owned_by":' .. encode_string("signalbox"),
        '"root":' .. encode_string(owner),
        '"parent":' .. (name ~= owner and encode_string(owner) or "null"),
    }
    if facts.max_model_len then
        parts[#parts + 1] = '"max_model_len":' .. facts.max_model_len
    end
    return "{" .. concat(parts, ",") .. "}"
end


-- Every name a client may send for a model, each once: its own, aliases, adapters, and adapters
-- that engines (those in `scope`) report.
local function names_of(model, scope)
    local seen, names = {}, {}
    local function add(name)
        if not seen[name] then
            seen[name] = true
            names[#names + 1] = name
        end
    end
    for _, list in ipairs({ model.names, model.loras, states.adapters(scope) }) do
        for _, name in ipairs(list) do
            add(name)
        end
    end
    return names
end


-- What a request may see of a model: nil when its key may not use it, when its rule has another one, or
-- a pool without it.
local function visible(state, fleet, model)
    return key_table.allows(state.key, model) and rules.names(state.rule, fleet, model)
        and rules.scope(model, state.rule) or nil
end


local function list(state, fleet)
    local entries, seen = {}, {}
    for _, model in ipairs(fleet.list) do
        local scope = visible(state, fleet, model)
        local facts = scope and states.facts(scope)
        local names = scope and names_of(model, scope) or {}
        sort(names)
        for _, name in ipairs(names) do
            if not seen[name] then
                seen[name] = true
                entries[#entries + 1] = entry(name, model.id, facts)
            end
        end
    end
    return '{"object":"list","data":[' .. concat(entries, ",") .. "]}"
end


function _M.answer(state, fleet, id)
    if not id then
        return openai.answer(list(state, fleet))
    end
    local model = request.resolve(fleet, id)
    local scope = model and visible(state, fleet, model)
    if not scope then
        return openai.refuse(state, 404, "model_not_found", "The model '" .. utf8.clip(id, 128)
            .. "' does not exist. GET /v1/models lists all.", { param = "model" })
    end
    return openai.answer(entry(id, model.id, states.facts(scope)))
end


return _M
