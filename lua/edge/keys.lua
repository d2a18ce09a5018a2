-- Clients' API keys: whose a request is, and whether it may come in. Only hashes are known here. The
-- text of keys.json lies in a dictionary; each worker builds its tables when the counter has moved.

local ffi = require "ffi"
local key_table = require "edge.key_table"

local ngx = ngx
local byte = string.byte
local ffi_string = ffi.string
local log = ngx.log
local lower = string.lower
local match = string.match
local now = ngx.now
local sub = string.sub
local tostring = tostring
local ERR = ngx.ERR

local dict = ngx.shared.edge_keys

ffi.cdef [[
unsigned char *SHA256(const unsigned char *data, size_t size, unsigned char *digest);
int SHA256_Init(void *context);
int SHA256_Update(void *context, const void *data, size_t size);
int SHA256_Final(unsigned char *digest, void *context);
int CRYPTO_memcmp(const void *a, const void *b, size_t size);
]]

local DIGEST_SIZE = 32
local START = key_table.START
local SPACE, TAB = 32, 9
-- Longer is no key of ours, and not worth hashing.
local MAX_SECRET = 4096

local TICK = "tick"        -- which text is in force
local SERIAL = "serial"    -- how many there were
local TEXT = "json/"       -- and a number: a new text never takes the room of the one in force

local NEEDED = "This server asks for an API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
local UNKNOWN = "This API key is not known here. Check that it was copied whole, or ask whoever runs this"
    .. " server for a new one."
local DISABLED = "This API key is disabled. Ask whoever runs this server."
local EXPIRED = "This API key has expired. Ask whoever runs this server for a new one."
local CHALLENGE = { authenticate = "Bearer" }


local _M = {}

local digest_cache = ffi.new("unsigned char[?]", DIGEST_SIZE)
local context_cache = ffi.new("uint64_t[32]")  -- OpenSSL's SHA256_CTX has 112 bytes
-- This worker's table and the counter it was built at. Without a usable text nobody comes in.
local NOBODY = { version = 0, count = 0, by_start = {} }
local table_cache = NOBODY
local tick_cache


-- nginx links libcrypto; a build of it that hides the names needs the library of the system.
local function libcrypto()
    if pcall(function() return ffi.C.SHA256, ffi.C.CRYPTO_memcmp end) then
        return ffi.C
    end
    local ok, loaded = pcall(ffi.load, "crypto")
    if not ok then
        error("could not find SHA256 of libcrypto: " .. tostring(loaded))
    end
    return loaded
end

local C = libcrypto()
-- OpenSSL 3 looks its algorithm up in each call of the one-shot function: 0.5 us instead of 0.06. It calls
-- these three old, and a later one may lack them.
local has_parts = pcall(function() return C.SHA256_Init, C.SHA256_Update, C.SHA256_Final end)


local function hash(text)
    if has_parts then
        C.SHA256_Init(context_cache)
        C.SHA256_Update(context_cache, text, #text)
        C.SHA256_Final(digest_cache, context_cache)

    else
        C.SHA256(text, #text, digest_cache)
    end
end


local function rebuild()
    local tick, text
    for _ = 1, 3 do  -- a newer text may have come, and this one gone, between the two look-ups
        tick = dict:get(TICK)
        text = tick and dict:get(TEXT .. tick)
        if text then
            break
        end
    end
    local built, err
    if text then
        built, err = key_table.build(text)
    end
    if not built then
        log(ERR, "edge: keys: no key is valid: ", err or "the dictionary has no keys.json")
    end
    table_cache = built or NOBODY
    tick_cache = tick
    return table_cache
end


-- The keys as they are now.
local function current()
    local tick = dict:get(TICK)
    if tick == tick_cache then
        return table_cache
    end
    return rebuild()
end


-- The counter of the control plane's changes.
function _M.version()
    return current().version
end


-- The entry of a secret, or nil.
local function find_entry(secret)
    hash(secret)
    local entry = current().by_start[ffi_string(digest_cache, START)]
    if entry and C.CRYPTO_memcmp(digest_cache, entry.digest, DIGEST_SIZE) == 0 then
        return entry
    end
end


-- What follows "Bearer"; nil when the header is of another kind, or has nothing there.
local function bearer(header)
    if sub(header, 1, 7) == "Bearer " then
        local first, last = byte(header, 8), byte(header, -1)
        if first and first ~= SPACE and first ~= TAB and last ~= SPACE and last ~= TAB then
            return sub(header, 8)
        end
    end
    if lower(sub(header, 1, 6)) ~= "bearer" then
        return nil
    end
    return match(header, "^%a+[ \t]+(%S.-)[ \t]*$")
end


-- The secret that a request carries. Authorization comes first; a client with both has one for each
-- kind of API, and both are this edge's.
local function secret_of(var)
    local header = var.http_authorization
    local secret = header and #header <= MAX_SECRET and bearer(header)
    if secret then
        return secret
    end
    if header and #header > MAX_SECRET then
        return header
    end
    secret = var.http_x_api_key
    return secret and match(secret, "^[ \t]*(%S.-)[ \t]*$")
end


-- Whose the request is: state.key, and true; or nil and a refusal (see openai.refuse).
function _M.admit(state)
    local secret = secret_of(ngx.var)
    if not secret then
        return nil, 401, "missing_api_key", NEEDED, CHALLENGE
    end
    local entry = #secret <= MAX_SECRET and find_entry(secret)
    if not entry then
        return nil, 401, "invalid_api_key", UNKNOWN, CHALLENGE
    end
    -- From here on the log line names the key, refused or not.
    state.key = entry
    if not entry.enabled then
        return nil, 401, "invalid_api_key", DISABLED, CHALLENGE
    end
    if entry.expires and now() >= entry.expires then
        return nil, 401, "invalid_api_key", EXPIRED, CHALLENGE
    end
    return true
end


-- Whether the key may use the model that was asked for: true, or nil and a refusal.
function _M.check_model(state)
    if key_table.allows(state.key, state.model) then
        return true
    end
    return nil, 403, "model_not_allowed", "The API key '" .. state.key.name .. "' may not use the model '"
        .. state.model.id .. "'. GET /v1/models lists what it may use.", { param = "model" }
end


-- Takes a new keys.json for all workers. Returns its version, or nil and the reason; then nothing
-- has changed.
function _M.put(text)
    local built, err = key_table.build(text)
    if not built then
        return nil, err
    end
    local number, ok
    number, err = dict:incr(SERIAL, 1, 0)
    if not number then
        return nil, "could not count keys.json: " .. err
    end
    ok, err = dict:safe_set(TEXT .. number, text)
    if not ok then
        return nil, "could not store keys.json (" .. #text .. " bytes): " .. err
    end
    local old = dict:get(TICK)
    ok, err = dict:safe_set(TICK, number)
    if not ok then
        dict:delete(TEXT .. number)
        return nil, "could not announce keys.json: " .. err
    end
    if old then
        dict:delete(TEXT .. old)
    end
    return built.version
end


-- In the master, at start and at every reload. `required`: whether the fleet asks for keys; without
-- the file it must not start then, since nobody could come in.
function _M.init(required)
    local path = ngx.config.prefix() .. "conf/keys.json"
    local file, err = io.open(path, "r")
    if not file then
        if required then
            error("could not read keys.json: " .. err)
        end
        return
    end
    local text = file:read("*a")
    file:close()

    local version
    version, err = _M.put(text)
    if not version then
        error(path .. ": " .. err)
    end
end


return _M
