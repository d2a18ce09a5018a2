-- A request to an engine over a cosocket, for probes. Connections are kept, so that probing opens
-- none per look.

local tcp = ngx.socket.tcp
local find = string.find
local lower = string.lower
local match = string.match
local pcall = pcall
local tonumber = tonumber
local tostring = tostring

local MAX_BODY = 4 * 1048576
local MAX_HEADERS = 100
-- Shorter than uvicorn's own 5 s, so that a probe never meets a closing connection.
local IDLE_MS = 4000


local _M = {}


local function read_headers(sock)
    local headers = {}
    for _ = 1, MAX_HEADERS do
        local line, err = sock:receive("*l")
        if not line then
            return nil, err
        end
        if line == "" then
            return headers
        end
        local name, value = match(line, "^([^:]+):%s*(.-)%s*$")
        if name then
            headers[lower(name)] = value
        end
    end
    return nil, "too many headers"
end


local function read_chunked(sock)
    local parts, total = {}, 0
    while true do
        local line, err = sock:receive("*l")
        local size = line and tonumber(match(line, "^%x+") or "", 16)
        if not size then
            return nil, err or "malformed chunk"
        end
        total = total + size
        if total > MAX_BODY then
            return nil, "body too large"
        end
        local data
        data, err = sock:receive(size + 2)
        if not data then
            return nil, err
        end
        if size == 0 then
            return table.concat(parts)
        end
        parts[#parts + 1] = data:sub(1, size)
    end
end


-- Returns the body and whether the connection can be kept.
local function read_body(sock, headers)
    local length = tonumber(headers["content-length"])
    if length then
        if length > MAX_BODY then
            return nil, "body too large"
        end
        if length == 0 then
            return "", true
        end
        local data, err = sock:receive(length)
        return data, err or true
    end
    if find(lower(headers["transfer-encoding"] or ""), "chunked", 1, true) then
        local data, err = read_chunked(sock)
        return data, err or true
    end
    local data, err, partial = sock:receive(MAX_BODY)
    data = data or (err == "closed" and partial) or nil
    return data, not data and err or false
end


local function handshake(sock, peer)
    if peer.scheme ~= "https" then
        return true
    end
    -- A handshake that is over at once (a slow worker, a fast engine) and whose certificate is wrong ends in
    -- an assertion of resty.core; with `false` for a session it would count as good, and the key would go.
    local whole, session, err = pcall(sock.sslhandshake, sock, nil, peer.host, peer.verify)
    if not whole or err then
        return nil, "TLS handshake failed: " .. (err or tostring(session))
    end
    return true
end


local function send(sock, peer, method, path, content)
    return sock:send(method .. " " .. path .. " HTTP/1.1\r\nHost: " .. peer.host .. ":" .. peer.port
        .. "\r\nUser-Agent: signalbox\r\nAccept: */*\r\n"
        .. (peer.authorization and "Authorization: " .. peer.authorization .. "\r\n" or "")
        .. (content and "Content-Type: application/json\r\nContent-Length: " .. #content .. "\r\n" or "")
        .. "\r\n" .. (content or ""))
end


local function request(peer, method, path, content, connect_ms, read_ms)
    local sock = tcp()
    sock:settimeouts(connect_ms, read_ms, read_ms)
    local pool = peer.scheme .. ":" .. peer.host .. ":" .. peer.address .. ":" .. peer.port
        .. ":" .. tostring(peer.verify)
    local ok, err = sock:connect(peer.address, peer.port, { pool = pool })
    if not ok then
        return nil, err
    end
    ok, err = handshake(sock, peer)
    if not ok then
        sock:close()
        return nil, err
    end

    ok, err = send(sock, peer, method, path, content)
    local line = ok and nil
    if ok then
        line, err = sock:receive("*l")
    end
    local status = line and tonumber(match(line, "^HTTP/1%.%d (%d%d%d)"))
    local headers = nil
    if status then
        headers, err = read_headers(sock)
    end
    if not headers then
        sock:close()
        return nil, err or "no HTTP answer"
    end

    local body, keep = read_body(sock, headers)
    if not body then
        sock:close()
        return nil, keep
    end
    if keep == true and lower(headers.connection or "") ~= "close" then
        sock:setkeepalive(IDLE_MS, 1)

    else
        sock:close()
    end
    return status, body
end


-- GET `path` from peer {address, port, scheme, host, verify, authorization}; time-outs in ms.
-- Returns status, body; or nil and why.
function _M.get(peer, path, connect_ms, read_ms)
    return request(peer, "GET", path, nil, connect_ms, read_ms)
end


-- POST `content`, a JSON text, likewise.
function _M.post(peer, path, content, connect_ms, read_ms)
    return request(peer, "POST", path, content, connect_ms, read_ms)
end


return _M
