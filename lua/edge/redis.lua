-- Redis, when the fleet names one: what several edges share. A pool of connections in each worker,
-- scripts by their hash, and a breaker that all workers share: after a failed call nobody calls until
-- shared_state.lua has had an answer. What must work without Redis asks `usable` first.
--
-- Cosockets do not work in the log phase nor in filters; call from elsewhere, or from a timer.

local metrics = require "edge.metrics"
local resp = require "edge.resp"

local exiting = ngx.worker.exiting
local format = string.format
local gsub = string.gsub
local byte = string.byte
local ipairs = ipairs
local log = ngx.log
local match = string.match
local now = ngx.now
local sha1_bin = ngx.sha1_bin
local sub = string.sub
local pcall = pcall
local tcp = ngx.socket.tcp
local tostring = tostring
local update_time = ngx.update_time
local ERR = ngx.ERR
local WARN = ngx.WARN

local dict = ngx.shared.edge_state

-- Connections of a worker; a call that finds all in use waits for one.
local POOL_SIZE, POOL_BACKLOG = 64, 4096
local IDLE_MS = 30000
-- Since when Redis does not answer; absent while it does.
local DOWN = "redis/down"


local _M = {}

-- As init was given them; nil: this edge is alone.
local options
local pool_name
local trips, trip_seconds


-- In the master, which may read a file that workers may not. `given`: host, port, database, tls, user,
-- password_file, sentinels (host, port), master, on_error, prefix, timeout (ms); nil for none.
function _M.init(given)
    options = given
    if not given then
        return
    end
    if given.password_file then
        local file, err = io.open(given.password_file, "r")
        if not file then
            error("could not read the password of Redis: " .. err)
        end
        given.password = match(file:read("*l") or "", "^%s*(.-)%s*$")
        file:close()
    end
    -- Another database or user must not get a connection that was made for this one.
    pool_name = "redis/" .. (given.master or given.host .. ":" .. given.port) .. "/" .. given.database .. "/"
        .. (given.user or "")
    trips = metrics.counter("trips")
    trip_seconds = metrics.counter("trip_seconds")
end


-- What init was given; nil when this edge is alone.
function _M.options()
    return options
end


-- Whether Redis answered when it was last asked.
function _M.usable()
    return not dict:get(DOWN)
end


-- Since when it does not answer (Unix seconds), or nil.
function _M.down_since()
    return dict:get(DOWN)
end


-- The first failure is told to all workers, and once to people.
local function trip(err)
    local ok = dict:safe_add(DOWN, now())
    if ok then
        log(ERR, "edge: redis: no answer: ", err, "; ", options.on_error == "local"
            and "this edge goes on with its share of the limits" or "requests with limits are refused")
    end
end


-- It answers again: called by shared_state.lua alone.
function _M.mend()
    local since = dict:get(DOWN)
    if since then
        dict:delete(DOWN)
        log(WARN, "edge: redis: it answers again, after ", format("%.1f", now() - since), " s")
    end
end


-- One command on a connection. The same answers as resp.read.
local function command(sock, args)
    local ok, err = sock:send(resp.encode(args))
    if not ok then
        return nil, err
    end
    return resp.read(sock)
end


-- What a new connection needs before its first command.
local function greet(sock)
    local ok, err
    if options.tls then
        -- A handshake that is over at once (a slow worker, a fast Redis) and whose certificate is wrong ends
        -- in an assertion of resty.core; with `false` for a session it would count as good.
        local whole
        whole, ok, err = pcall(sock.sslhandshake, sock, nil, options.host, true)
        if not whole or err then
            return nil, "TLS: " .. (err or tostring(ok))
        end
    end
    if options.password then
        ok, err = command(sock, options.user and { "AUTH", options.user, options.password }
            or { "AUTH", options.password })
        if not ok then
            return nil, "AUTH: " .. err
        end
    end
    if options.database ~= 0 then
        ok, err = command(sock, { "SELECT", options.database })
        if not ok then
            return nil, "SELECT: " .. err
        end
    end
    return true
end


-- `patience`: milliseconds beyond the usual that an answer may take.
local function open_socket(host, port, pool, patience)
    local sock, err = tcp()
    if not sock then
        return nil, err
    end
    sock:settimeouts(options.timeout, options.timeout, options.timeout + (patience or 0))
    local ok
    ok, err = sock:connect(host, port, { pool = pool, pool_size = POOL_SIZE, backlog = POOL_BACKLOG })
    if not ok then
        return nil, err
    end
    return sock
end


-- Where the master is now, as the first sentinel that answers says.
local function ask_sentinels()
    local err = "no sentinel"
    for _, sentinel in ipairs(options.sentinels) do
        local sock, found
        sock, err = open_socket(sentinel.host, sentinel.port)
        if sock then
            found, err = command(sock, { "SENTINEL", "get-master-addr-by-name", options.master })
            sock:close()
            if found then
                return found[1], found[2]
            end
        end
    end
    return nil, err or "no sentinel knows the master"
end


local master_cache = {}


local function connect(patience)
    local host, port, pool = options.host, options.port, pool_name
    if options.sentinels then
        if not master_cache.host then
            host, port = ask_sentinels()
            if not host then
                return nil, "sentinels: " .. port
            end
            master_cache.host, master_cache.port = host, port
        end
        host, port = master_cache.host, master_cache.port
        pool = pool .. host .. ":" .. port
    end
    local sock, err = open_socket(host, port, pool, patience)
    if sock and sock:getreusedtimes() == 0 then
        local ok
        ok, err = greet(sock)
        if not ok then
            sock:close()
            return nil, err
        end
    end
    return sock, err
end


-- One try. Besides the reply and its reason: whether Redis itself refused, and whether the connection
-- had been used before (it may have been closed meanwhile).
local function try(args, patience)
    local sock, err = connect(patience)
    if not sock then
        return nil, err
    end
    local reused = sock:getreusedtimes() > 0
    local reply, refused
    reply, err, refused = command(sock, args)
    if reply == nil and not refused then
        sock:close()
        return nil, err, false, reused and (err == "closed" or err == "connection reset by peer")
    end
    -- nginx complains of connections that a worker leaves open when it ends.
    if exiting() then
        sock:close()

    else
        sock:setkeepalive(IDLE_MS)
    end
    return reply, err, refused
end


-- A command as a list of texts and numbers. The reply (false for Redis' nil), or nil, the reason, and
-- true when Redis answered with an error. Does not touch the breaker.
local function call(args)
    local began = now()
    local reply, err, refused, stale = try(args)
    local tries = 1
    -- A restart closes all connections of the pool.
    while stale and tries <= POOL_SIZE do
        reply, err, refused, stale = try(args)
        tries = tries + 1
    end
    if reply == nil then
        master_cache.host = nil
    end
    update_time()
    metrics.add(trips, 1)
    metrics.add(trip_seconds, now() - began)
    return reply, err, refused
end


-- A command that waits for something, for `seconds` at most. The same answers; a failure is no news of
-- Redis itself.
function _M.wait(args, seconds)
    return try(args, seconds * 1000)
end


-- A script for `eval`: its text.
function _M.script(text)
    local sha = gsub(sha1_bin(text), ".", function(c) return format("%02x", byte(c)) end)
    return { text = text, sha = sha }
end


-- Runs a script; `args`: two free places, the number of keys, the keys, the rest. nil and the reason
-- when it failed; then others do not try until Redis has answered shared_state.lua.
function _M.eval(script, args)
    args[1], args[2] = "EVALSHA", script.sha
    local reply, err, refused = call(args)
    if refused and sub(err, 1, 8) == "NOSCRIPT" then
        args[1], args[2] = "EVAL", script.text
        reply, err = call(args)
    end
    if reply == nil then
        trip(err)
        return nil, err
    end
    return reply
end


return _M
