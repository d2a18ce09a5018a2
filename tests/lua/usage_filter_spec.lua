local usage_filter = require "edge.usage_filter"

-- What vLLM 0.32 writes, with less text.
local ROLE = 'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
    .. '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
local TEXT = 'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"\\n"}}]}\n\n'
local LAST = 'data: {"id":"cmpl-1","choices":[{"index":0,"text":" there","finish_reason":"length"}]}\n\n'
local USAGE = 'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"tiny-a",'
    .. '"choices":[],"usage":{"prompt_tokens":14,"total_tokens":18,"completion_tokens":4,'
    .. '"prompt_tokens_details":{"cached_tokens":0}},"system_fingerprint":"vllm-0.32.0-7a3d1da8"}\n\n'
local OBJECT = '{"prompt_tokens":14,"total_tokens":18,"completion_tokens":4,'
    .. '"prompt_tokens_details":{"cached_tokens":0}}'
local DONE = "data: [DONE]\n\n"
local ALIVE = ": keep-alive\n\n"
-- Texts and tools may say what the usage event says.
local DECOYS = {
    'data: {"choices":[{"delta":{"content":"\\"choices\\":[],\\"usage\\":{\\"prompt_tokens\\":1}"}}]}\n\n',
    'data: {"choices":[{"delta":{"tool_calls":[{"choices":[],"usage":{"prompt_tokens":1}}]}}]}\n\n',
    'data: {"choices":[{"logprobs":{"content":[{"token":"usage","choices":[]}]}}],"usage":{}}\n\n',
    'data: {"choices":[],"usage":null}\n\n',
    'data: {"choices":[],"prompt_filter_results":[{"usage":{}}]}\n\n',
    'data: {"choices":[ {}],"usage":{}}\n\n',
    'data: {"x":{"choices":[],"usage":{}}}\n\n',
    'data: {"error":{"message":"\\"usage\\""},"choices":[],"usage":{}}\n\n',
    'data: ["choices",[],"usage",{}]\n\n',
    'data: {"choices":[],"usage":{}\n\n',
    'data: {"choices":[],"usage":{}} x\n\n',
    'data: {"choices":[],"choices":[1],"usage":{}}\n\n',
    'data: {"choices":[],\ndata: "usage":{}}\n\n',
    'event: usage\ndata: {"choices":[],"usage":{}}\n\n',
    'data: {"choices":[],"usage":{}}\nid: 5\n\n',
    'date: {"choices":[],"usage":{}}\n\n',
}


-- Feeds pieces, then the end; returns all that passed and the filter.
local function run(...)
    local filter = usage_filter.new()
    local out = {}
    for i = 1, select("#", ...) do
        out[i] = usage_filter.feed(filter, (select(i, ...)))
    end
    out[#out + 1] = usage_filter.flush(filter)
    return table.concat(out), filter
end


-- The same however the stream is cut into two or three pieces, or single bytes.
local function check(stream, expected, usage)
    local function compare(got, filter)
        assert.equal(expected, got)
        assert.equal(usage or false, filter.usage)
    end
    compare(run(stream))
    local bytes = {}
    for i = 1, #stream do
        bytes[i] = stream:sub(i, i)
        compare(run(stream:sub(1, i), stream:sub(i + 1)))
        compare(run(stream:sub(1, i), stream:sub(i + 1, i + 3), stream:sub(i + 4)))
    end
    local filter, out = usage_filter.new(), {}
    for i = 1, #bytes do
        out[i] = usage_filter.feed(filter, bytes[i])
    end
    out[#out + 1] = usage_filter.flush(filter)
    compare(table.concat(out), filter)
end


local function crlf(text)
    return (text:gsub("\n", "\r\n"))
end


describe("usage_filter", function()
    it("takes the usage event out of what vLLM sends", function()
        check(ROLE .. TEXT .. LAST .. USAGE .. DONE, ROLE .. TEXT .. LAST .. DONE, OBJECT)
    end)

    it("takes it out with CRLF, without the space, with other spaces", function()
        check(crlf(TEXT .. USAGE .. DONE), crlf(TEXT .. DONE), OBJECT)
        check(TEXT .. USAGE:gsub("data: ", "data:") .. DONE, TEXT .. DONE, OBJECT)
        local other = 'data:  {"usage" : {"prompt_tokens": 1} , "choices" : [ ] }\n\n'
        check(other .. DONE, DONE, '{"prompt_tokens": 1}')
    end)

    it("leaves comments where they are", function()
        local before, after = ALIVE .. TEXT .. ALIVE, ALIVE .. DONE
        check(before .. USAGE .. after, before .. after, OBJECT)
        check(": one\n" .. USAGE .. ":\n" .. DONE, ": one\n:\n" .. DONE, OBJECT)
        check(crlf(ALIVE .. USAGE) .. "\n\n" .. DONE, crlf(ALIVE) .. "\n\n" .. DONE, OBJECT)
    end)

    it("takes nothing else", function()
        for _, decoy in ipairs(DECOYS) do
            check(decoy .. DONE, decoy .. DONE)
            check(decoy .. USAGE .. DONE, decoy .. DONE, OBJECT)
        end
    end)

    it("passes a stream without it, cut anywhere", function()
        check(ROLE .. TEXT .. LAST .. DONE, ROLE .. TEXT .. LAST .. DONE)
        for size = 0, #USAGE - 1 do
            local stream = TEXT .. USAGE:sub(1, size)
            assert.equal(stream, (run(stream)))
            assert.equal(stream, (run(stream:sub(1, #TEXT + 3), stream:sub(#TEXT + 4))))
        end
    end)

    it("does not hold back whole events, comments or what is another line", function()
        local filter = usage_filter.new()
        for _, piece in ipairs({
            ROLE, TEXT .. LAST, ALIVE, ": kee", "p\n\n", "event: x", "\nda", "ta: y\n\n", DONE,
        }) do
            assert.equal(piece, usage_filter.feed(filter, piece))
        end
        assert.is_true(usage_filter.between(filter))
        assert.equal("", usage_filter.feed(filter, "dat"))
        assert.is_false(usage_filter.between(filter))
        assert.equal("date", usage_filter.feed(filter, "e"))
    end)

    it("holds back at most 64 KB of an event", function()
        local filter = usage_filter.new()
        local long = "data: " .. ("x"):rep(usage_filter.MAX_HELD - 6)
        assert.equal("", usage_filter.feed(filter, long))
        assert.equal(long .. "y", usage_filter.feed(filter, "y"))
        assert.equal("z", usage_filter.feed(filter, "z"))
        assert.equal("\n\n" .. DONE, usage_filter.feed(filter, "\n\n" .. USAGE .. DONE))
    end)

    it("passes everything after the end of a stream that was cut", function()
        local filter = usage_filter.new()
        usage_filter.feed(filter, "dat")
        assert.equal("dat", usage_filter.flush(filter))
        assert.equal("", usage_filter.flush(filter))
        assert.equal("a: " .. USAGE, usage_filter.feed(filter, "a: " .. USAGE))
    end)
end)
