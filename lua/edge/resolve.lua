-- The address of a backend that is given by name, followed as DNS changes. OpenResty ships the
-- resolver as resty.dns, Debian the same code as nginx.dns.

local ok, resolver = pcall(require, "resty.dns.resolver")
if not ok then
    ok, resolver = pcall(require, "nginx.dns.resolver")
end
local available = ok

local log = ngx.log
local now = ngx.now
local max = math.max
local ERR = ngx.ERR

local MIN_TTL, FAILED_TTL = 0.5, 2


local _M = {}

-- host -> {address, until}: what this worker last learned.
local answers_cache = {}


local function ask(host, dns)
    local client, err = resolver:new({ nameservers = dns, retrans = 2, timeout = 1000 })
    if not client then
        return nil, err
    end
    local answers
    answers, err = client:query(host, { qtype = client.TYPE_A })
    if not answers then
        return nil, err
    end
    if answers.errcode then
        return nil, answers.errstr
    end
    for _, answer in ipairs(answers) do
        if answer.address then
            return answer.address, answer.ttl
        end
    end
    return nil, "no address in the answer"
end


-- The current address of a backend: itself for an IP; else from DNS, by its TTL. A name that DNS
-- does not know (or no longer answers) keeps the last address, which at first is what it resolved
-- to when the fleet was rendered. `ahead`: so many seconds before an answer runs out it is asked for
-- again, because nobody comes exactly at that moment, and an engine that has moved is not there.
function _M.address(backend, dns, ahead)
    if not backend.named or not available or not dns or #dns == 0 then
        return backend.address
    end
    local known = answers_cache[backend.host]
    if known and known.valid_until > now() then
        return known.address or backend.address
    end

    local address, detail = ask(backend.host, dns)
    if address then
        answers_cache[backend.host] = {
            address = address, valid_until = now() + max((detail or 0) - ahead, MIN_TTL),
        }
        return address
    end
    if not known or not known.failed then
        log(ERR, "edge: resolve: ", backend.host, ": ", detail)
    end
    answers_cache[backend.host] = {
        address = known and known.address, failed = true, valid_until = now() + FAILED_TTL,
    }
    return known and known.address or backend.address
end


return _M
