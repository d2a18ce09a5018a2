-- Finds text fields of a multipart/form-data body without holding the body.
--
-- The name that we read must be the name that the engine will use, and vLLM reads forms with
-- Starlette and python-multipart, of which several versions are about. So this reader is
-- strict: what those (or any sane parser) could read in two ways is refused. Parts whose names
-- nobody asked for may look more freely. docs/request-bodies.md lists the refusals.

local utf8 = require "edge.utf8"

local byte = string.byte
local find = string.find
local format = string.format
local gmatch = string.gmatch
local lower = string.lower
local match = string.match
local min = math.min
local sub = string.sub
local error = error
local pairs = pairs


local _M = {
    MAX_PARTS = 64,
    MAX_HEADER_BYTES = 8192,
    MAX_VALUE_BYTES = 512,
    MAX_BOUNDARY_BYTES = 70,
    WINDOW_BYTES = 65536,
}

local QUOTE = 34

local TOKEN = "[%w!#$%%&'*+.^_`|~-]+"

local function invalid(what)
    return nil, "The form is not valid multipart/form-data: " .. what
                .. " Send it as an HTTP library writes it.", "invalid_multipart"
end


-- Returns the position of the quote that closes the one at `first`, or nil.
local function quoted_end(text, first)
    local p = first + 1
    while true do
        p = find(text, '["\\]', p)
        if not p or byte(text, p) == QUOTE then
            return p
        end
        p = p + 2  -- an escaped character
    end
end


-- Splits "type; key=value; key="value"" and returns the type and a table of the values by key,
-- both in lower case but for the values, or nil if the text can be read in two ways. Escapes
-- in quoted values are left as they are. `unquoted` is the pattern of a bare value.
local function parse_options(text, unquoted)
    -- After \\" some parsers are still inside the string.
    if find(text, '\\\\"', 1, true) then
        return nil
    end
    local kind, p = match(text, "^[ \t]*([%w/-]+)[ \t]*()")
    local options = {}
    while kind and p <= #text do
        local start = match(text, "^;[ \t]*()", p)
        if not start then
            return nil
        end
        if start > #text then
            break
        end

        local key, first = match(text, "^(" .. TOKEN .. ")=()", start)
        if not key then
            return nil
        end
        local value, after
        if byte(text, first) == QUOTE then
            local last = quoted_end(text, first)
            value, after = last and sub(text, first + 1, last - 1), last and last + 1

        else
            value, after = match(text, "^(" .. unquoted .. ")()", first)
        end
        key = lower(key)
        if not value or options[key] then
            return nil
        end
        options[key] = value
        p = match(text, "^[ \t]*()", after)
    end
    return kind and lower(kind), options
end


local function has_extended(options, key)
    for name in pairs(options) do
        if sub(name, 1, #key + 1) == key .. "*" then
            return true
        end
    end
    return false
end


-- Returns the boundary that a Content-Type header names, or nil, a message and
-- "invalid_multipart".
function _M.boundary(content_type)
    local kind, options = parse_options(content_type, "[%w'()+_./:=?-]+")
    if kind ~= "multipart/form-data" then
        return invalid("its Content-Type does not name that type with plain parameters.")
    end
    local charset = options.charset
    if has_extended(options, "charset") or has_extended(options, "boundary")
       or charset and lower(charset) ~= "utf-8" and lower(charset) ~= "utf8" then
        return invalid("its charset is not UTF-8, or its Content-Type has parameters with '*'.")
    end
    local boundary = options.boundary
    if not boundary or #boundary > _M.MAX_BOUNDARY_BYTES
       or not find(boundary, "^[%w'()+_,./:=? -]*[%w'()+_,./:=?-]$") then
        return invalid("its Content-Type has no boundary of 1 to 70 allowed characters.")
    end
    return boundary
end


-- Reads up to `length` bytes at `offset`, fewer only at the end. A failing reader is a fault of
-- ours, not of the client's, so it raises an error.
local function read(body, offset, length)
    length = min(length, body.size - offset)
    if length <= 0 then
        return ""
    end
    local text, err = body.reader(offset, length)
    if not text or #text ~= length then
        error(format("multipart: could not read %d bytes at %d of the request body: %s",
                     length, offset, err or "it is shorter than it should be"))
    end
    return text
end


-- Returns the offset of the first delimiter at or after `offset`, or nil. Windows overlap so
-- that one is found that lies across the end of a window.
local function find_delimiter(body, offset)
    local delimiter = body.delimiter
    while offset < body.size do
        local text = read(body, offset, _M.WINDOW_BYTES)
        local at = find(text, delimiter, 1, true)
        if at then
            return offset + at - 1
        end
        if offset + #text >= body.size then
            return nil
        end
        offset = offset + #text - #delimiter + 1
    end
    return nil
end


-- Returns the values of a part's Content-Disposition and Content-Transfer-Encoding from its
-- header block, or nil if a line is malformed or one of the two comes twice. `block` ends with
-- the CRLF of its last line.
local function parse_headers(block)
    -- Bare CR and LF, folded lines and control characters are read in many ways.
    local lines = 0
    local found = {}
    for line in gmatch(block, "(.-)\r\n") do
        local name, value = match(line, "^(" .. TOKEN .. "):([^%z\1-\8\10-\31\127]*)$")
        name = name and lower(name)
        if not name or found[name] and sub(name, 1, 8) == "content-" then
            return nil
        end
        found[name] = value
        lines = lines + 1
    end
    return found["content-disposition"] and found
end


-- Returns true if a part named like a wanted field is a plain text field.
local function is_text(headers, options)
    for key in pairs(options) do
        if key ~= "name" then
            return false
        end
    end
    local encoding = lower(headers["content-transfer-encoding"] or "binary")
    return find(encoding, "^ *binary *$") or find(encoding, "^ *[78]bit *$")
end


-- Reads the headers of the part that starts at `offset`. Returns the offset of its content and
-- its name if it is a wanted field; or nil, message, code.
local function read_part(body, offset, wanted)
    local text = read(body, offset, _M.MAX_HEADER_BYTES)
    local stop = find(text, "\r\n\r\n", 1, true)
    if not stop then
        return invalid(format("the headers of a part never end, or are longer than %d bytes.",
                              _M.MAX_HEADER_BYTES))
    end
    local headers = parse_headers(sub(text, 1, stop + 1))
    if not headers then
        return invalid("a part has malformed or doubled headers, or no Content-Disposition.")
    end

    local kind, options = parse_options(headers["content-disposition"], TOKEN)
    local name = kind == "form-data" and options.name
    if not name or has_extended(options, "name") or find(name, "\\", 1, true) then
        return invalid('a part\'s Content-Disposition is not a plain form-data; name="...".')
    end
    if not wanted[name] then
        return offset + stop + 3
    end
    if not is_text(headers, options) then
        return invalid(format('the field "%s" is a file or encoded; it must be plain text.', name))
    end
    return offset + stop + 3, name
end


local function read_value(body, name, first, length)
    if length > _M.MAX_VALUE_BYTES then
        return nil, format('The form field "%s" is longer than %d bytes. Send a shorter one.',
                           name, _M.MAX_VALUE_BYTES), "value_too_long"
    end
    local value = read(body, first, length)
    if not utf8.valid(value) then
        return invalid(format('the field "%s" is not UTF-8.', name))
    end
    return { value = value, first = first, length = length }
end


-- Returns the offset just after the first boundary, or nil.
local function skip_first_boundary(body)
    local line = sub(body.delimiter, 3)
    local offset = read(body, 0, 2) == "\r\n" and 2 or 0
    return read(body, offset, #line) == line and offset + #line or nil
end


-- Finds wanted text fields wherever in the body they stand. `reader(offset, length)` returns
-- that many bytes of the body (offsets from 0), `size` is its length, `wanted` a set of names.
-- Returns a table of { value =, first = its offset, length = } by name; or nil, a message for
-- the client and a code: "invalid_multipart", "duplicate_key", "too_many_parts" or
-- "value_too_long". Raises an error if the reader fails.
function _M.find(reader, size, boundary, wanted)
    local body = { reader = reader, size = size, delimiter = "\r\n--" .. boundary }
    local fields = {}
    local offset = skip_first_boundary(body)
    if not offset then
        return invalid("it does not start with its boundary.")
    end

    for _ = 0, _M.MAX_PARTS do
        local mark = read(body, offset, 2)
        if mark == "--" then
            if not find(read(body, offset + 2, 5), "^[\r\n]?[\r\n]?[\r\n]?[\r\n]?$") then
                return invalid("something follows its last boundary.")
            end
            return fields
        end
        if mark ~= "\r\n" then
            return invalid("a boundary is not followed by a line end.")
        end

        local first, name, code = read_part(body, offset + 2, wanted)
        if not first then
            return nil, name, code
        end
        local stop = find_delimiter(body, first)
        if not stop or read(body, first, #body.delimiter - 2) == sub(body.delimiter, 3) then
            return invalid("a part does not end with the boundary on a line of its own.")
        end
        if name then
            if fields[name] then
                return nil, format('The form has the field "%s" twice. Send it once.', name),
                       "duplicate_key"
            end
            local field, err
            field, err, code = read_value(body, name, first, stop - first)
            if not field then
                return nil, err, code
            end
            fields[name] = field
        end
        offset = stop + #body.delimiter
    end
    return nil, format("The form has more than %d parts. Send fewer.", _M.MAX_PARTS),
           "too_many_parts"
end


return _M
