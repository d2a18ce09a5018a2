-- The allow-list of paths. Pure. Whatever is not here does not exist: vLLM serves unauthenticated
-- management and /invocations routes on the same port.

local match = string.match


local _M = {}

-- How an error looks inside a stream that has begun with 200.
local OPENAI_FAULT = 'data: {"error"'
local ANTHROPIC_FAULT = "event: error"
local RESPONSES_FAULT = "event: response.failed"

local JSON = { kind = "json", methods = { POST = true }, allow = "POST", dialect = "openai" }
local ANTHROPIC = { kind = "json", methods = { POST = true }, allow = "POST", dialect = "anthropic" }
local MULTIPART = { kind = "multipart", methods = { POST = true }, allow = "POST", dialect = "openai" }
local READ = { GET = true, HEAD = true }

local EXACT = {
    ["/v1/models"] = { kind = "models", methods = READ, allow = "GET, HEAD", dialect = "openai" },
}


-- Each path gets a route table of its own: the log and the metrics name the path by it.
local function add(template, ...)
    for _, path in ipairs({ ... }) do
        EXACT[path] = {
            kind = template.kind,
            methods = template.methods,
            allow = template.allow,
            dialect = template.dialect,
            fault = template.dialect == "anthropic" and ANTHROPIC_FAULT or OPENAI_FAULT,
        }
    end
end


add(JSON, "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses",
    "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/pooling", "/classify",
    "/tokenize", "/detokenize", "/v1/audio/speech")
add(ANTHROPIC, "/v1/messages", "/v1/messages/count_tokens")
add(MULTIPART, "/v1/audio/transcriptions", "/v1/audio/translations")

for path, route in pairs(EXACT) do
    route.path = path
end

for _, path in ipairs({ "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages" }) do
    EXACT[path].generates = true
end
-- Streams of these end with an event for the usage, if it is asked for.
EXACT["/v1/chat/completions"].usage_event = true
EXACT["/v1/completions"].usage_event = true
EXACT["/v1/responses"].makes_responses = true
EXACT["/v1/responses"].fault = RESPONSES_FAULT

local MODEL = {
    kind = "model", methods = READ, allow = "GET, HEAD", dialect = "openai", path = "/v1/models/{id}",
}
local RESPONSE = {
    kind = "response", methods = { GET = true }, allow = "GET", dialect = "openai",
    path = "/v1/responses/{id}", fault = RESPONSES_FAULT,
}
local CANCEL = {
    kind = "response", methods = { POST = true }, allow = "POST", dialect = "openai",
    path = "/v1/responses/{id}/cancel", fault = RESPONSES_FAULT,
}


-- The route of a normalised path, and what stands for {id} in it; nil when the path is not served.
function _M.find(path)
    local route = EXACT[path]
    if route then
        return route
    end

    local id = match(path, "^/v1/models/(.+)$")
    if id then
        return MODEL, id
    end

    id = match(path, "^/v1/responses/([%w_-]+)$")
    if id then
        return RESPONSE, id
    end

    id = match(path, "^/v1/responses/([%w_-]+)/cancel$")
    if id then
        return CANCEL, id
    end

    return nil
end


return _M
