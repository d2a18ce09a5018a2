-- Keeps what of the daily and monthly budgets is spent over a restart of the edge. The master opens two
-- files, which the workers inherit: those may not create files where the master may. They are written
-- in turn, so that one is whole whatever happens; its last line says so.

local limit_store = require "edge.limit_store"

local every = ngx.timer.every
local concat = table.concat
local ipairs = ipairs
local log = ngx.log
local match = string.match
local gmatch = string.gmatch
local open = io.open
local pairs = pairs
local tonumber = tonumber
local ERR = ngx.ERR

local dict = ngx.shared.edge_budgets

-- Seconds of spending that a crash of the machine may lose.
local INTERVAL = 5
local NUMBER = "number"


local _M = {}

-- Inherited from the master.
local files_cache = {}


-- The text of a file, as its number and key -> tokens; nil when it is not whole.
local function parse(text)
    local number, body, last = match(text, "^(%d+)\n(.-)end (%d+)\n")
    if not number or number ~= last then
        return nil
    end
    local spent = {}
    for key, tokens in gmatch(body, "(%S+) (%d+)\n") do
        spent[key] = tonumber(tokens)
    end
    return tonumber(number), spent
end


local function encode(number)
    local parts = { number .. "\n" }
    for _, key in ipairs(dict:get_keys(0)) do
        local tokens = match(key, "^budget/") and dict:get(key)
        if tokens and tokens > 0 then
            parts[#parts + 1] = key .. " " .. math.floor(tokens) .. "\n"
        end
    end
    parts[#parts + 1] = "end " .. number .. "\n"
    return concat(parts)
end


-- Writes what is spent now.
function _M.save()
    local number, err = dict:incr(NUMBER, 1, 0)
    local file = number and files_cache[number % 2 + 1]
    local ok = file ~= nil
    if ok then
        file:seek("set", 0)
        ok, err = file:write(encode(number))
    end
    if ok then
        ok, err = file:flush()
    end
    if not ok then
        log(ERR, "edge: budgets: could not save what is spent: ", err)
    end
end


local function load_newest(texts)
    local newest, spent = 0, {}
    for _, text in ipairs(texts) do
        local number, found = parse(text)
        if number and number > newest then
            newest, spent = number, found
        end
    end
    for key, tokens in pairs(spent) do
        limit_store.restore(key, tokens)
    end
    dict:safe_set(NUMBER, newest)
end


-- In the master, at start and at every reload.
function _M.init()
    local texts = {}
    for i = 1, 2 do
        local path = ngx.config.prefix() .. "run/budgets-" .. i
        local file, err = open(path, "r+")
        if not file then
            file, err = open(path, "w+")
        end
        if not file then
            error("could not open " .. path .. ": " .. err)
        end
        texts[i] = file:read("*a") or ""
        files_cache[i] = file
    end
    -- A reload: the dictionary knows better.
    if not dict:get(NUMBER) then
        load_newest(texts)
    end
end


function _M.init_worker()
    local ok, err = every(INTERVAL, function(premature)
        if not premature and dict:add("saver", true, INTERVAL - 0.5) then
            _M.save()
        end
    end)
    if not ok then
        log(ERR, "edge: budgets: could not start: ", err)
    end
end


return _M
