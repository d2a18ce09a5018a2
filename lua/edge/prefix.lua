-- The beginnings of a prompt as a chain of hashes over its raw bytes: equal keys mean equal bytes up
-- to there, for the same model and salt. Pure, and the only pass over a whole prompt besides
-- json_scan's: 8 bytes at a time through FFI, nothing allocated but the keys.
--
-- Where keys stand is a function of the bytes before them alone, so that a prompt that grows keeps
-- its keys: at lines (every 2 KB up to 64 KB, then 1.25 times as far each) and at the ends of the
-- first messages. The ends of the last messages are keys as well: the next turn of a conversation
-- finds the end of the turn before among them.

local bit = require "bit"
local ffi = require "ffi"
local json_skip = require "edge.json_skip"

local bxor = bit.bxor
local byte = string.byte
local cast = ffi.cast
local ffi_string = ffi.string
local min = math.min
local rshift = bit.rshift

local MAX_ELEMENTS = json_skip.MAX_ELEMENTS
local QUOTE, OPEN_BRACKET = 34, 91


local _M = {
    -- Shorter beginnings are worth nothing to an engine: the ends of such messages are looked up (one
    -- may be a whole conversation so far) but never remembered.
    MIN_BYTES = 512,
    STEP = 2048,
    EVEN_UNTIL = 65536,
    GROWTH = 1.25,
    -- What follows is not looked at: ten images must not cost milliseconds.
    MAX_BYTES = 4 * 1048576,
    FIRST_ENDS = 8,
    LAST_ENDS = 16,
}

local MIN_BYTES = _M.MIN_BYTES
local FIRST_ENDS = _M.FIRST_ENDS
local LAST_ENDS = _M.LAST_ENDS
local MAX_BYTES = _M.MAX_BYTES

-- What stands before the messages in an engine's prompt, in this order, and the messages themselves.
local HEADS = { "tools", "system", "instructions" }
local BODIES = { "messages", "prompt", "input" }

local OPENING_BYTES = 2048

local SEED = 0x9E3779B97F4A7C15ULL
local FACTOR = 0xD6E8FEB86659FD93ULL

local bytes_type = ffi.typeof("const uint8_t *")
local words_type = ffi.typeof("const uint64_t *")

local lines = {}
do
    local at = _M.STEP
    while at < MAX_BYTES do
        lines[#lines + 1] = at
        at = at < _M.EVEN_UNTIL and at + _M.STEP or math.floor(at * _M.GROWTH)
    end
    lines[#lines + 1] = MAX_BYTES
end

-- The chain being built; building never yields.
local hash_cache = ffi.new("uint64_t[1]")
local chain_cache, text_cache
local at_cache, line_cache = 0, 1


-- Mixes `length` bytes at `pointer` into the hash. No key to anything secret hangs on it: who makes
-- two prompts collide sends his own request to a worse engine.
local function mix(pointer, length)
    local h = hash_cache[0]
    local words = cast(words_type, pointer)
    local count = rshift(length, 3)
    for i = 0, count - 1 do
        h = bxor(h, words[i]) * FACTOR
        h = bxor(h, rshift(h, 32))
    end
    for i = count * 8, length - 1 do
        h = bxor(h, pointer[i]) * FACTOR
    end
    h = bxor(h, length) * FACTOR
    hash_cache[0] = bxor(h, rshift(h, 29))
end


local function mix_string(text)
    mix(cast(bytes_type, text), #text)
end


local function mark()
    local chain = chain_cache
    local n = chain.n + 1
    chain.n = n
    chain[2 * n - 1] = ffi_string(hash_cache, 8)
    chain[2 * n] = at_cache
    if at_cache < MIN_BYTES then
        chain.small = n
    end
end


-- Adds bytes first..last of the text, with a key at each line that they cross.
local function add(first, last)
    local pointer = cast(bytes_type, text_cache) + first - 1
    local left = last - first + 1
    while left > 0 and at_cache < MAX_BYTES do
        local step = min(left, lines[line_cache] - at_cache)
        mix(pointer, step)
        pointer = pointer + step
        left = left - step
        at_cache = at_cache + step
        if at_cache == lines[line_cache] then
            line_cache = line_cache + 1
            mark()
        end
    end
end


-- The end of a message or of what stands before: a key unless a line has just set it.
local function mark_end()
    if at_cache ~= lines[line_cache - 1] then
        mark()
    end
end


local function add_elements(first, last, ends)
    local n = ends.n
    for i = 1, n do
        add(first, ends[i])
        if i <= FIRST_ENDS or i > n - LAST_ENDS then
            mark_end()
        end
        first = ends[i] + 1
    end
    if n == MAX_ELEMENTS then
        add(first, last)
        mark_end()
    end
end


local function add_body(first, last, ends)
    local c = byte(text_cache, first)
    if c == OPEN_BRACKET and ends.n > 0 then
        return add_elements(first + 1, last - 1, ends)
    end
    -- A string without its quotes, token numbers without their brackets: these grow at their end.
    if c == QUOTE or c == OPEN_BRACKET then
        first, last = first + 1, last - 1
    end
    add(first, last)
    mark_end()
end


-- Which of BODIES a request has, if any.
local function body_of(starts)
    local key
    for i = 1, #BODIES do
        key = starts[BODIES[i]] and BODIES[i] or key
    end
    return key
end


-- The chain of a request: text is its JSON body, starts and stops what json_scan found in it,
-- elements the ends of messages, and seed names what must be the same besides (model and adapter).
-- Returns an array of 8-byte keys, each followed by the number of bytes of its beginning, the longest
-- last (one array: a second one per request would be garbage), with the number `n` of keys and the
-- number `small` of those too short to remember; or false when the request has no prompt.
function _M.chain(text, starts, stops, elements, seed)
    local key = body_of(starts)
    if not key then
        return false
    end

    chain_cache, text_cache = { n = 0, small = 0 }, text
    at_cache, line_cache = 0, 1
    hash_cache[0] = SEED
    mix_string(seed)
    local pointer = cast(bytes_type, text)
    if starts.cache_salt then
        mix(pointer + starts.cache_salt - 1, stops.cache_salt - starts.cache_salt + 1)
    end
    for i = 1, #HEADS do
        local first = starts[HEADS[i]]
        if first then
            mix_string(HEADS[i])
            add(first, stops[HEADS[i]])
            if at_cache >= MIN_BYTES then
                mark_end()
            end
        end
    end
    mix_string(key)
    add_body(starts[key], stops[key], elements[key])

    local chain = chain_cache
    chain_cache, text_cache = nil, nil
    return chain.n > 0 and chain or false
end


-- A key for the first 2 KB of a prompt without its cache_salt; false when the prompt is shorter.
function _M.opening(text, starts, stops, seed)
    local key = body_of(starts)
    if not key or stops[key] - starts[key] < OPENING_BYTES then
        return false
    end
    hash_cache[0] = SEED
    mix_string(seed)
    mix(cast(bytes_type, text) + starts[key] - 1, OPENING_BYTES)
    return "opening " .. ffi_string(hash_cache, 8)
end


-- A number of 32 bits for bytes first..last of a text.
function _M.number(text, first, last)
    hash_cache[0] = SEED
    mix(cast(bytes_type, text) + first - 1, last - first + 1)
    return tonumber(rshift(hash_cache[0], 32))
end


return _M
