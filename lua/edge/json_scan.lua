-- Finds top-level members of a JSON object as byte ranges, without decoding the object.
--
-- This is the edge's hot path, so: plain string.find (memchr) jumps over strings, everything
-- else is a byte loop, both of which LuaJIT compiles; nothing is allocated but the short keys.
-- What lies inside values is not checked: the engine parses the whole body and answers 400.
-- What must hold is this: if Python's json.loads accepts the body as an object, we either find
-- the very same members or refuse. docs/request-bodies.md lists the refusals.

local cjson = require "cjson"
local json_skip = require "edge.json_skip"
local clear = require "table.clear"

local byte = string.byte
local find = string.find
local format = string.format
local gsub = string.gsub
local sub = string.sub
local ipairs = ipairs
local pcall = pcall
local sort = table.sort
local type = type

local invalid = json_skip.invalid
local member_end = json_skip.member_end
local skip_space = json_skip.skip_space
local string_end = json_skip.string_end


local _M = {
    MAX_KEYS = 256,
    -- Keys of `wanted` must not be longer than this; longer ones in a body are never looked at.
    MAX_KEY_BYTES = 64,
}

local MAX_KEYS = _M.MAX_KEYS
local MAX_KEY_BYTES = _M.MAX_KEY_BYTES
local MAX_ESCAPED_KEY_BYTES = 6 * MAX_KEY_BYTES  -- every byte written as \u00XX

local SPACE = 32
local QUOTE, COMMA, COLON, BACKSLASH = 34, 44, 58, 92
local OPEN_BRACKET, OPEN_BRACE, CLOSE_BRACE = 91, 123, 125
local MINUS, DIGIT_0, DIGIT_9 = 45, 48, 57


-- Returns the decoded key between the quotes at `first` and `last` if it is a wanted one.
local function wanted_key(body, first, last, wanted)
    local length = last - first - 1
    if length > MAX_ESCAPED_KEY_BYTES then
        return nil
    end
    local key = sub(body, first + 1, last - 1)
    if find(key, "\\", 1, true) then
        local ok, decoded = pcall(cjson.decode, '["' .. key .. '"]')
        key = ok and decoded[1]
    end
    return key and wanted[key] and key or nil
end


-- Finds the wanted members of the object that `body` holds. `wanted` has true for a key that may
-- stand only once, "last" for one of which the last counts, as in Python. The tables `starts` and
-- `stops` are cleared, then filled: the raw value of a key is body:sub(starts[key], stops[key]);
-- starts[1] and stops[1] are the object's own braces. `elements`, which may be absent, has a table
-- for each key whose array's elements are to be noted (json_skip.member_end).
-- Returns true, or nil, a message for the client, and a code: "invalid_json", "duplicate_key",
-- "too_many_keys" or "too_deep". After an error the tables hold nothing of use.
function _M.scan(body, wanted, starts, stops, elements)
    clear(starts)
    clear(stops)
    local p, c = skip_space(body, 1)
    if c ~= OPEN_BRACE then
        return nil, "The body is not a JSON object: it must start with '{'. Send one JSON object "
                    .. "in UTF-8 without a byte order mark.", "invalid_json"
    end
    starts[1] = p
    p, c = skip_space(body, p + 1)

    local count = 0
    while c ~= CLOSE_BRACE or count > 0 do
        local key_last = c == QUOTE and string_end(body, p)
        if not key_last then
            return invalid("a key in double quotes is missing", p)
        end
        count = count + 1
        if count > MAX_KEYS then
            return nil, format("The body has more than %d top-level keys. Send fewer.", MAX_KEYS),
                   "too_many_keys"
        end
        local key = wanted_key(body, p, key_last, wanted)

        p, c = skip_space(body, key_last + 1)
        if c ~= COLON then
            return invalid("a ':' is missing", p)
        end
        p, c = skip_space(body, p + 1)
        local last, err, code = member_end(body, p, c, key and elements and elements[key])
        if not last then
            return nil, err, code
        end
        if key then
            if starts[key] and wanted[key] ~= "last" then
                return nil, format('The body has the key "%s" twice. Send it once.', key),
                       "duplicate_key"
            end
            starts[key] = p
            stops[key] = last
        end

        p, c = skip_space(body, last + 1)
        if c == CLOSE_BRACE then
            break
        end
        if c ~= COMMA then
            return invalid("a ',' or '}' is missing", p)
        end
        p, c = skip_space(body, p + 1)
    end

    stops[1] = p
    p, c = skip_space(body, p + 1)
    if c then
        return invalid("something follows the object", p)
    end
    return true
end


local KINDS = {
    [QUOTE] = "string", [OPEN_BRACE] = "object", [OPEN_BRACKET] = "array", [MINUS] = "number",
    [byte("t")] = "true", [byte("f")] = "false", [byte("n")] = "null",
}
for digit = DIGIT_0, DIGIT_9 do
    KINDS[digit] = "number"
end


-- Tells what the value that starts at `first` is by its first byte: "string", "number",
-- "object", "array", "true", "false", "null" or "invalid".
function _M.kind(body, first)
    return KINDS[byte(body, first)] or "invalid"
end


-- Returns the decoded string whose raw value is body:sub(first, last), or nil if that is no
-- string or does not decode (a lone surrogate, a bad escape, a raw control character).
function _M.string_value(body, first, last)
    if last <= first or byte(body, first) ~= QUOTE or byte(body, last) ~= QUOTE then
        return nil
    end
    local escaped = false
    for p = first + 1, last - 1 do
        local c = byte(body, p)
        if c < SPACE then
            return nil
        end
        escaped = escaped or c == BACKSLASH
    end
    if not escaped then
        return sub(body, first + 1, last - 1)
    end
    local ok, decoded = pcall(cjson.decode, "[" .. sub(body, first, last) .. "]")
    if ok and type(decoded[1]) == "string" then
        return decoded[1]
    end
    return nil
end


local function by_place(a, b)
    return a.first < b.first
end


-- Returns the pieces of the body after `edits`, each of which puts `text` in the place of the bytes
-- first..last. To insert before a byte at p, replace the empty range p, p - 1.
function _M.splice(body, edits)
    sort(edits, by_place)
    local pieces, n, from = {}, 0, 1
    for _, edit in ipairs(edits) do
        pieces[n + 1], pieces[n + 2] = sub(body, from, edit.first - 1), edit.text
        n, from = n + 2, edit.last + 1
    end
    pieces[n + 1] = sub(body, from)
    return pieces
end


-- By how many bytes these edits move what stands at `place`.
function _M.shift(edits, place)
    local by = 0
    for _, edit in ipairs(edits) do
        if edit.first < place then
            by = by + #edit.text - (edit.last - edit.first + 1)
        end
    end
    return by
end


local function escape(c)
    if c == '"' or c == "\\" then
        return "\\" .. c
    end
    return format("\\u%04x", byte(c))
end


-- Returns the string, which must be UTF-8, as a JSON string literal with its quotes.
function _M.encode_string(s)
    return '"' .. gsub(s, '[%z\1-\31\\"\127]', escape) .. '"'
end


return _M
