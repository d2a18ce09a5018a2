-- The request body, from memory or from nginx's temp file, and the ways to change it: by byte
-- range, never by encoding.

local json_scan = require "edge.json_scan"

local req = ngx.req
local collectgarbage = collectgarbage
local io_open = io.open
local ipairs = ipairs
local min = math.min
local pcall = pcall
local sub = string.sub
local concat = table.concat

local WINDOW = 1048576
-- Above this a body is dropped from Lua's heap at once: the collector would keep several of them
-- for a while.
local LARGE = 4 * 1048576


local _M = {
    NO_LENGTH = "The request needs a Content-Length header.",
}


-- Waits for the whole body. Returns nil and a message when nginx cannot read it in Lua.
function _M.read()
    -- Module 0.10.26 raises an error for HTTP/2 requests without a Content-Length.
    return pcall(req.read_body)
end


-- The whole body as a string; an empty one when there is none. `from_file` tells that nginx holds
-- it on disk.
function _M.text()
    local data = req.get_body_data()
    if data then
        return data, false
    end

    local path = req.get_body_file()
    if not path then
        return "", false
    end
    local file, err = io_open(path, "rb")
    if not file then
        return nil, "could not open the request body: " .. err
    end
    data = file:read("*a")
    file:close()
    return data, true
end


-- A reader(offset, length) over the body, with its size, that holds no more than it is asked for;
-- call close() after.
function _M.reader()
    local data = req.get_body_data()
    if data then
        return function(offset, length)
            return sub(data, offset + 1, offset + length)
        end, #data, function() end
    end

    local path = req.get_body_file()
    if not path then
        return function() return "" end, 0, function() end
    end
    local file, err = io_open(path, "rb")
    if not file then
        return nil, "could not open the request body: " .. err
    end
    return function(offset, length)
        file:seek("set", offset)
        return file:read(length) or ""
    end, file:seek("end"), function() file:close() end
end


-- Frees what a large body left in Lua's heap. Call it when the last reference is gone.
function _M.forget(size)
    if size > LARGE then
        collectgarbage()
    end
end


-- Makes edits (json_scan.splice) to a JSON text that came from memory or file.
function _M.edit(text, from_file, edits)
    local pieces = json_scan.splice(text, edits)
    if not from_file then
        req.set_body_data(concat(pieces))
        return
    end
    -- nginx writes it to a file again: 10 MB must not stay in the request's memory.
    req.init_body(WINDOW)
    for _, piece in ipairs(pieces) do
        req.append_body(piece)
    end
    req.finish_body()
end


-- Replaces `length` bytes at `offset` (0-based) through a reader, window by window.
function _M.splice_reader(reader, size, offset, length, replacement)
    local function copy(from, to)
        while from < to do
            local part = reader(from, min(WINDOW, to - from))
            if part == "" then
                return
            end
            req.append_body(part)
            from = from + #part
        end
    end

    req.init_body(WINDOW)
    copy(0, offset)
    req.append_body(replacement)
    copy(offset + length, size)
    req.finish_body()
end


return _M
