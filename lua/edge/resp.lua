-- Redis' protocol (RESP2): commands as bytes, replies as Lua values. Pure but for the socket it is given.

local byte = string.byte
local sub = string.sub
local tonumber = tonumber
local tostring = tostring

local STATUS, ERROR, INTEGER, BULK, ARRAY = 43, 45, 58, 36, 42
-- No reply that we ask for is larger: whoever sends more is no Redis.
local MAX_SIZE, MAX_ITEMS = 16 * 1024 * 1024, 100000


local _M = {}


-- A command as a list of pieces, which a cosocket sends as they are.
function _M.encode(args)
    local n = #args
    local out = { "*", n, "\r\n" }
    local at = 4
    for i = 1, n do
        local arg = tostring(args[i])
        out[at], out[at + 1], out[at + 2], out[at + 3], out[at + 4] = "$", #arg, "\r\n", arg, "\r\n"
        at = at + 5
    end
    return out
end


local read


local function read_bulk(sock, size)
    if size < 0 then
        return false
    end
    local data, err = sock:receive(size + 2)
    if not data then
        return nil, err
    end
    return sub(data, 1, size)
end


local function read_array(sock, n)
    if n < 0 then
        return false
    end
    local items = {}
    for i = 1, n do
        local item, err, refused = read(sock)
        if item == nil then
            return nil, err, refused
        end
        items[i] = item
    end
    return items
end


-- One reply: a text, number or list; false for Redis' nil. Else nil, the reason, and true when it is
-- Redis that says so: then the connection is still in step.
function read(sock)
    local line, err = sock:receive()
    if not line then
        return nil, err
    end
    local kind = byte(line)
    local rest = sub(line, 2)
    if kind == STATUS then
        return rest

    elseif kind == ERROR then
        return nil, rest, true
    end
    local number = tonumber(rest)
    if number and kind == INTEGER then
        return number

    elseif number and kind == BULK and number <= MAX_SIZE then
        return read_bulk(sock, number)

    elseif number and kind == ARRAY and number <= MAX_ITEMS then
        return read_array(sock, number)
    end
    return nil, "this is not Redis' protocol"
end

_M.read = read


return _M
