-- Takes the usage event that the edge asked for (usage_splice) out of a stream again, and no other
-- byte. Pure. Bytes come in any pieces; what may be the beginning of that event waits for the rest.

local json_scan = require "edge.json_scan"

local byte = string.byte
local concat = table.concat
local find = string.find
local sub = string.sub

local NEWLINE, RETURN, SPACE, COLON = 10, 13, 32, 58
local DATA = "data:"
local DATA_SIZE = #DATA
local USAGE = '"usage"'
local EMPTY = '"choices"%s*:%s*%[%s*%]'
local WANTED = { choices = true, usage = true, error = true }
-- Where the stream stands: before an event, in a comment before one, in an event that passes.
local BEFORE, COMMENT, INSIDE = 1, 2, 3


local _M = {
    -- An event without this cannot be the one.
    MARK = USAGE,
    -- A longer event is not held back.
    MAX_HELD = 65536,
}

local MAX_HELD = _M.MAX_HELD

local starts_cache, stops_cache = {}, {}


-- The filter of one stream. `held`: bytes that wait, or false; `usage`: the last usage object that was
-- taken out, as text.
function _M.new()
    return { place = BEFORE, open = false, held = false, usage = false }
end


-- Whether an event may begin with the next byte and nothing waits.
function _M.between(filter)
    return filter.place == BEFORE and not filter.held
end


-- The usage object of a data line if it has no choices, else nil.
local function usage_of(line)
    if not find(line, USAGE, 1, true) or not find(line, EMPTY) then
        return nil
    end
    local data = sub(line, byte(line, DATA_SIZE + 1) == SPACE and DATA_SIZE + 2 or DATA_SIZE + 1)
    local starts, stops = starts_cache, stops_cache
    if not json_scan.scan(data, WANTED, starts, stops) then
        return nil
    end
    local choices, usage = starts.choices, starts.usage
    -- Inside of generated text quotes are escaped, but tools and logprobs bring objects of their own:
    -- only the outermost members count.
    if choices and usage and not starts.error and json_scan.kind(data, usage) == "object"
        and find(sub(data, choices, stops.choices), "^%[%s*%]$")
    then
        return sub(data, usage, stops.usage)
    end
end


-- An event that begins at p. Returns where the next look goes; and "hold" when what stands there must
-- wait for more bytes, "drop" when everything before is the event.
local function begin_event(filter, text, p)
    local c = byte(text, p)
    if c == NEWLINE or c == RETURN then
        return p + 1
    end
    if c == COLON then
        filter.place = COMMENT
        return p
    end
    local start = sub(text, p, p + DATA_SIZE - 1)
    local line_end = start == DATA and find(text, "\n", p + DATA_SIZE, true)
    if not line_end then
        if start == sub(DATA, 1, #start) and #text - p < MAX_HELD then
            return p, "hold"
        end
        filter.place, filter.open = INSIDE, false
        return p
    end

    local usage = usage_of(sub(text, p, line_end - 1))
    if usage then
        -- The empty line ends it; another line would make it a different event.
        local last = line_end + (byte(text, line_end + 1) == RETURN and 2 or 1)
        c = byte(text, last)
        if not c then
            return p, "hold"
        end
        if c == NEWLINE then
            filter.usage = usage
            return last + 1, "drop"
        end
    end
    filter.place, filter.open = INSIDE, false
    return line_end + 1
end


-- Goes on to the end of the line at p. Lines may come in pieces: `open` tells that this one is not
-- empty.
local function pass_line(filter, text, p)
    local line_end = find(text, "\n", p, true)
    if not line_end then
        filter.open = filter.open or find(text, "[^\r]", p) ~= nil
        return #text + 1
    end
    local empty = not filter.open and (line_end == p or line_end == p + 1 and byte(text, p) == RETURN)
    filter.open = false
    if empty or filter.place == COMMENT then
        filter.place = BEFORE
    end
    return line_end + 1
end


-- Takes the stream's next bytes; returns those that pass now.
function _M.feed(filter, bytes)
    local text = filter.held and filter.held .. bytes or bytes
    filter.held = false
    local size = #text
    local out, n
    local from, p = 1, 1
    while p <= size do
        if filter.place == BEFORE then
            local next_p, what = begin_event(filter, text, p)
            if what == "hold" then
                filter.held = sub(text, p)
                size = p - 1
                break
            end
            if what == "drop" then
                out, n = out or {}, (n or 0) + 1
                out[n] = sub(text, from, p - 1)
                from = next_p
            end
            p = next_p

        else
            p = pass_line(filter, text, p)
        end
    end
    local rest = from == 1 and size == #text and text or sub(text, from, size)
    return out and concat(out) .. rest or rest
end


-- The stream has ended, whole or not: returns what waited. Whatever comes after that passes.
function _M.flush(filter)
    local held = filter.held or ""
    filter.held = false
    filter.place, filter.open = INSIDE, true
    return held
end


return _M
