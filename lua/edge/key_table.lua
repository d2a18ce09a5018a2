-- The tables of a keys.json, or what is wrong with it. Pure.

local cjson = require "cjson.safe"

local char = string.char
local find = string.find
local format = string.format
local gsub = string.gsub
local ipairs = ipairs
local pairs = pairs
local sub = string.sub
local type = type

local HEX_DIGITS = 64
-- Names stand in log lines as they are.
local NAME = "^[A-Za-z0-9][A-Za-z0-9._-]*$"
local MAX_NAME = 64

local BYTES = {}
for n = 0, 255 do
    BYTES[format("%02x", n)] = char(n)
end


local _M = {
    -- An entry is found by so many bytes of its hash; the rest is compared in constant time.
    START = 16,
}


local function is_name(value)
    return type(value) == "string" and #value <= MAX_NAME and find(value, NAME) ~= nil
end


local function check_entry(entry)
    if type(entry) ~= "table" or not is_name(entry.name) then
        return "an entry has no name of letters, digits, '.', '_' or '-'"
    end
    if type(entry.enabled) ~= "boolean" then
        return "enabled of " .. entry.name .. " is neither true nor false"
    end
    if entry.expires ~= nil and type(entry.expires) ~= "number" then
        return "expires of " .. entry.name .. " is no time in Unix seconds"
    end
    if entry.models ~= nil and type(entry.models) ~= "table" then
        return "models of " .. entry.name .. " is no list"
    end
    if entry.limits ~= nil and type(entry.limits) ~= "table" then
        return "limits of " .. entry.name .. " is no object"
    end
    if type(entry.priority) ~= "string" or type(entry.weight) ~= "number" then
        return entry.name .. " needs a priority and a weight"
    end
end


local function names_as_set(list)
    local set = {}
    for _, name in ipairs(list) do
        set[name] = true
    end
    return set
end


-- What a keys.json says: {version, count, by_start}; nil and the reason when it says nothing usable.
-- Reasons never have a hash in them.
function _M.build(text)
    local given, err = cjson.decode(text)
    if type(given) ~= "table" then
        return nil, "keys.json is not a JSON object: " .. (err or "another value")
    end
    if type(given.version) ~= "number" or type(given.keys) ~= "table" then
        return nil, "keys.json needs version and keys"
    end
    local built = { version = given.version, count = 0, by_start = {} }
    for hex, entry in pairs(given.keys) do
        local problem = check_entry(entry)
        if problem then
            return nil, problem
        end
        if type(hex) ~= "string" or #hex ~= HEX_DIGITS or find(hex, "[^0-9a-f]") then
            return nil, "the hash of " .. entry.name .. " is not 64 hexadecimal digits"
        end
        local digest = gsub(hex, "%x%x", BYTES)
        entry.digest = digest
        entry.models = entry.models and names_as_set(entry.models) or false
        built.by_start[sub(digest, 1, _M.START)] = entry
        built.count = built.count + 1
    end
    return built
end


-- Whether a request with this key (false: no keys are asked for) may use a model.
function _M.allows(key, model)
    local models = key and key.models
    return not models or models[model.id] or false
end


return _M
