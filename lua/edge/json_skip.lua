-- Where JSON values end, without decoding them. Pure; the hot part of json_scan (see there for the
-- rules): plain string.find (memchr) jumps over strings, everything else is a byte loop.

local byte = string.byte
local find = string.find
local format = string.format


local _M = {
    MAX_DEPTH = 512,
    MAX_ELEMENTS = 4096,
}

local MAX_DEPTH = _M.MAX_DEPTH
local MAX_ELEMENTS = _M.MAX_ELEMENTS

local TAB, NEWLINE, RETURN, SPACE = 9, 10, 13, 32
local QUOTE, COMMA, BACKSLASH = 34, 44, 92
local OPEN_BRACKET, CLOSE_BRACKET, OPEN_BRACE, CLOSE_BRACE = 91, 93, 123, 125
local PLUS, MINUS, DOT = 43, 45, 46
local DIGIT_0, DIGIT_9, UPPER_A, UPPER_Z, LOWER_A, LOWER_Z = 48, 57, 65, 90, 97, 122


local function invalid(what, p)
    return nil, format("The body is not valid JSON: %s at byte %d. Send one JSON object.",
                       what, p), "invalid_json"
end


-- Returns the position of the first byte that is not white space, and that byte (nil: the end).
local function skip_space(body, p)
    local c = byte(body, p)
    while c == SPACE or c == NEWLINE or c == RETURN or c == TAB do
        p = p + 1
        c = byte(body, p)
    end
    return p, c
end


-- Returns the position of the quote that closes the string opened at `first`, or nil.
-- Backslashes are counted backwards from a quote and never past the quote before it, so the
-- time is linear in the length whatever the string holds.
local function string_end(body, first)
    local p = first
    while true do
        p = find(body, '"', p + 1, true)
        if not p then
            return nil
        end
        local q = p - 1
        while byte(body, q) == BACKSLASH do
            q = q - 1
        end
        if (p - q) % 2 == 1 then
            return p
        end
    end
end


-- Returns the position of the bracket that closes the one at `first`, which stands at `depth`.
local function container_end(body, first, depth)
    local outside = depth - 1
    local p = first + 1
    while true do
        local c = byte(body, p)
        if c == QUOTE then
            p = string_end(body, p)
            if not p then
                return invalid("a string never ends", first)
            end

        elseif c == OPEN_BRACE or c == OPEN_BRACKET then
            depth = depth + 1
            -- The outermost object, which holds this value, counts as well.
            if depth >= MAX_DEPTH then
                return nil, format("The body nests deeper than %d levels. Send a flatter one.",
                                   MAX_DEPTH), "too_deep"
            end

        elseif c == CLOSE_BRACE or c == CLOSE_BRACKET then
            depth = depth - 1
            if depth == outside then
                return p
            end

        elseif not c then
            return invalid("an object or array never ends", first)
        end
        p = p + 1
    end
end


-- Returns the position of the last byte of the number or word that starts at `first`.
local function scalar_end(body, first)
    local p = first
    local c = byte(body, p)
    while c and (c >= DIGIT_0 and c <= DIGIT_9 or c >= LOWER_A and c <= LOWER_Z
                 or c >= UPPER_A and c <= UPPER_Z or c == MINUS or c == DOT or c == PLUS) do
        p = p + 1
        c = byte(body, p)
    end
    if p == first then
        return invalid("a value is missing", first)
    end
    return p - 1
end


local function value_end(body, first, c, depth)
    if c == QUOTE then
        local last = string_end(body, first)
        if not last then
            return invalid("a string never ends", first)
        end
        return last
    end
    if c == OPEN_BRACE or c == OPEN_BRACKET then
        return container_end(body, first, depth)
    end
    return scalar_end(body, first)
end


-- The same for an array, and the last byte of each of its elements in `ends[1..ends.n]`. Numbers are
-- no elements, and those after the first MAX_ELEMENTS are not noted.
local function array_end(body, first, ends)
    local n = 0
    local p, c = skip_space(body, first + 1)
    if c ~= OPEN_BRACE and c ~= QUOTE and c ~= OPEN_BRACKET then
        return container_end(body, first, 1)
    end
    while true do
        local last, err, code = value_end(body, p, c, 2)
        if not last then
            return nil, err, code
        end
        if n < MAX_ELEMENTS then
            n = n + 1
            ends[n] = last
        end
        p, c = skip_space(body, last + 1)
        if c == CLOSE_BRACKET then
            ends.n = n
            return p
        end
        if c ~= COMMA then
            return invalid("a ',' or ']' is missing", p)
        end
        p, c = skip_space(body, p + 1)
    end
end


-- Returns the position of the last byte of the value that starts at `first` with the byte c. `ends`,
-- where it is given, gets the elements of an array (ends.n is 0 for anything else).
local function member_end(body, first, c, ends)
    if not ends then
        return value_end(body, first, c, 1)
    end
    ends.n = 0
    if c == OPEN_BRACKET then
        return array_end(body, first, ends)
    end
    return value_end(body, first, c, 1)
end


_M.invalid = invalid
_M.skip_space = skip_space
_M.string_end = string_end
_M.member_end = member_end

return _M
