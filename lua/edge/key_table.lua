-- The tables of a keys.json, or what is wrong with it. Pure.

local cjson = require "cjson.safe"
local ffi = require "ffi"

local byte = string.byte
local ffi_string = ffi.string
local find = string.find
local ipairs = ipairs
local pairs = pairs
local sub = string.sub
local type = type

local DIGEST_SIZE = 32
-- Names stand in log lines as they are.
local NAME = "^[A-Za-z0-9][A-Za-z0-9._-]*$"
local MAX_NAME = 64

-- Code of a hexadecimal digit -> its value.
local VALUE = {}
for n = 0, 15 do
    VALUE[byte("0123456789abcdef", n + 1)] = n
end
local buffer_cache = ffi.new("uint8_t[?]", DIGEST_SIZE)


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


-- The bytes of a hash; nil when it is not 64 small hexadecimal digits. No pattern: for 10,000 keys that
-- would hold a worker up.
local function bytes_of(hex)
    if type(hex) ~= "string" or #hex ~= 2 * DIGEST_SIZE then
        return nil
    end
    for i = 1, DIGEST_SIZE do
        local high, low = VALUE[byte(hex, 2 * i - 1)], VALUE[byte(hex, 2 * i)]
        if not high or not low then
            return nil
        end
        buffer_cache[i - 1] = high * 16 + low
    end
    return ffi_string(buffer_cache, DIGEST_SIZE)
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
        local digest = bytes_of(hex)
        if not digest then
            return nil, "the hash of " .. entry.name .. " is not 64 hexadecimal digits"
        end
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
