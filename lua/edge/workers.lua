-- Which workers there are, of which generation. The control plane reads this after a reload: exit
-- code 0 of a signal says nothing, only workers of the new generation that answer do.

local ffi = require "ffi"

local log = ngx.log
local ERR = ngx.ERR
local exiting = ngx.worker.exiting
local worker_pid = ngx.worker.pid
local match = string.match
local tonumber = tonumber

local dict = ngx.shared.edge_workers

local ESRCH = 3
local ENDED = "ended"

ffi.cdef [[ int kill(int pid, int sig); ]]


local _M = {}

local generation = "0"


-- In the master, at start and at every reload: the control plane has raised conf/generation.
function _M.init()
    local file = io.open(ngx.config.prefix() .. "conf/generation", "r")
    if file then
        generation = match(file:read("*a") or "", "%w+") or "0"
        file:close()
    end
end


local function mark(value)
    local ok, err = dict:safe_set(worker_pid(), value)
    if not ok then
        log(ERR, "edge: workers: could not register worker: ", err)
    end
end


function _M.init_worker()
    mark(generation)
end


-- The entry stays until the janitor has seen that the process is gone and has cleared its counts.
function _M.exit_worker()
    mark(ENDED)
end


function _M.generation()
    return generation
end


-- True when no process has this pid. EPERM means that it lives under another user.
function _M.is_gone(pid)
    return ffi.C.kill(pid, 0) ~= 0 and ffi.errno() == ESRCH
end


-- Calls visit(pid, orderly) for every registered worker whose process is gone, and forgets it.
function _M.each_gone(visit)
    for _, key in ipairs(dict:get_keys(0)) do
        local pid = tonumber(key)
        if _M.is_gone(pid) then
            visit(pid, dict:get(key) == ENDED)
            dict:delete(key)
        end
    end
end


-- The pids of all workers that are registered.
function _M.pids()
    local pids = {}
    for i, key in ipairs(dict:get_keys(0)) do
        pids[i] = tonumber(key)
    end
    return pids
end


-- The workers as a list for /state.
function _M.list()
    local found = {}
    for _, key in ipairs(dict:get_keys(0)) do
        local born = dict:get(key)
        local pid = tonumber(key)
        if born and born ~= ENDED and not _M.is_gone(pid) then
            found[#found + 1] = {
                pid = pid,
                generation = born,
                exiting = born ~= generation or (pid == worker_pid() and exiting()),
            }
        end
    end
    return found
end


return _M
