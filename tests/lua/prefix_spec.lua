local json_scan = require "edge.json_scan"
local prefix = require "edge.prefix"
local traits = require "edge.traits"

local rep = string.rep

local WANTED = {}
for _, name in ipairs(traits.WANTED) do
    WANTED[name] = true
end

local starts, stops = {}, {}


local function chain(body, seed)
    assert(json_scan.scan(body, WANTED, starts, stops, traits.elements))
    return prefix.chain(body, starts, stops, traits.elements, seed or "m")
end


local function message(text, role)
    return '{"role": "' .. (role or "user") .. '", "content": "' .. text .. '"}'
end


-- A body with these messages; `more` are further members in front of or behind them.
local function chat(messages, before, after)
    return "{" .. (before or "") .. '"messages": [' .. table.concat(messages, ", ") .. "]"
        .. (after or "") .. "}"
end


local function conversation(turns, words)
    local messages = {}
    for i = 1, turns do
        messages[i] = message(i .. rep(words or " says something", 1 + i % 7),
                              i % 2 == 0 and "assistant" or "user")
    end
    return messages
end


local function key(one, i)
    return one[2 * i - 1]
end


local function bytes(one, i)
    return one[2 * i]
end


-- The position in `longer` of the longest key that stands in `known`, 0 for none.
local function longest_match(known, longer)
    local set = {}
    for i = 1, known.n do
        set[key(known, i)] = true
    end
    for i = longer.n, 1, -1 do
        if set[key(longer, i)] then
            return i
        end
    end
    return 0
end


local function shared(one, other)
    local set, count = {}, 0
    for i = 1, one.n do
        set[key(one, i)] = true
    end
    for i = 1, other.n do
        count = count + (set[key(other, i)] and 1 or 0)
    end
    return count
end


describe("a growing conversation", function()
    it("finds the whole turn before, however long the turns are", function()
        for _, words in ipairs({ "x", rep(" many words", 9), rep("long ", 2000) }) do
            local before
            for turns = 1, 60, 2 do
                local now = chain(chat(conversation(turns, words)))
                if before then
                    local at = longest_match(before, now)
                    assert.equal(key(before, before.n), key(now, at))
                end
                before = now
            end
        end
    end)

    it("finds a turn before to which many messages were added", function()
        for added = 1, prefix.LAST_ENDS - 1 do
            local before = chain(chat(conversation(40)))
            local now = chain(chat(conversation(40 + added)))
            assert.equal(key(before, before.n), key(now, longest_match(before, now)))
        end
    end)

    it("finds at least a line of it when more were added than are looked up", function()
        local words = rep(" words", 40)
        local before, now = chain(chat(conversation(100, words))), chain(chat(conversation(300, words)))
        assert.is_true(longest_match(before, now) >= before.n - prefix.LAST_ENDS)
    end)

    it("finds it past the elements that are noted, and past the bytes that are read", function()
        local many = {}
        for i = 1, 5000 do
            many[i] = "{}"
        end
        local before = chain(chat(many))
        many[5001], many[5002] = message("a"), message("b")
        assert.is_true(longest_match(before, chain(chat(many))) > 0)

        local image = message(rep("QUJD", prefix.MAX_BYTES / 4))
        before = chain(chat({ image }))
        assert.equal(before.n, longest_match(before, chain(chat({ image, message("b"), message("c") }))))
    end)

    it("does not care what else stands in the body, or where", function()
        local messages = conversation(5)
        local one = chain(chat(messages))
        assert.same(one, chain(chat(messages, '"stream": true, "model": "m", ', ', "temperature": 0.5')))
        assert.same(one, chain("{\n" .. '"messages" :\n [' .. table.concat(messages, ", ") .. "\n] }"))
    end)

    it("in the prompt of a completion is found line by line", function()
        local text = rep("once upon a time ", 1000)
        local before = chain('{"prompt": "' .. text .. '"}')
        local now = chain('{"prompt": "' .. text .. text .. '"}')
        assert.equal(before.n - 1, longest_match(before, now))
        local tokens = rep("12345, ", 3000)
        assert.is_true(longest_match(chain('{"prompt": [' .. tokens .. '1]}'),
                                     chain('{"prompt": [' .. tokens .. tokens .. '2]}')) > 5)
    end)
end)


describe("keys differ", function()
    local messages = { message(rep("system ", 1000), "system"), message("hello") }
    local plain = chain(chat(messages))

    it("by model, adapter and cache_salt", function()
        assert.equal(0, shared(plain, chain(chat(messages), "other")))
        local salted = chain(chat(messages, '"cache_salt": "a", '))
        assert.equal(0, shared(plain, salted))
        assert.equal(0, shared(salted, chain(chat(messages, '"cache_salt": "b", '))))
        assert.same(salted, chain(chat(messages, "", ', "cache_salt": "a"')))
    end)

    it("by what stands before the messages: tools, system, instructions", function()
        for _, name in ipairs({ "tools", "system", "instructions" }) do
            local one = chain(chat(messages, '"' .. name .. '": "a", '))
            assert.equal(0, shared(plain, one))
            assert.equal(0, shared(one, chain(chat(messages, '"' .. name .. '": "b", '))))
        end
    end)

    it("from the first different byte on, and not before", function()
        for at = 1, 6000, 997 do
            local text = rep("s", 7000)
            local other = text:sub(1, at) .. "t" .. text:sub(at + 2)
            local one, two = chain(chat({ message(text), message("hello") })),
                chain(chat({ message(other), message("hello") }))
            assert.equal(math.floor((at + #message("") - 2) / prefix.STEP), shared(one, two))
        end
    end)

    it("where bytes move from one message to the next", function()
        local one, two = chain('{"messages": ["ab", "c"]}'), chain('{"messages": ["a", "bc"]}')
        assert.equal(0, shared(one, two))
    end)

    it("with equal system messages up to their end only", function()
        local other = chain(chat({ messages[1], message("good evening") }))
        assert.equal(plain.n - 1, longest_match(plain, other))
    end)
end)


describe("the chain", function()
    it("is cheap in keys: a few dozen for 1 MB", function()
        assert.is_true(chain(chat({ message(rep("a", 1048576)) })).n < 50)
        assert.is_true(chain(chat(conversation(4000, rep(" words", 40)))).n < 80)
        assert.is_true(chain(chat(conversation(4, "x"))).n <= 4)
    end)

    it("tells which keys are too short to remember", function()
        assert.same({ 2, 2 }, { chain(chat({ message("a"), message("b") })).n,
                                chain(chat({ message("a"), message("b") })).small })
        local long = chain(chat({ message("a"), message(rep("b", 600)) }))
        assert.same({ 2, 1 }, { long.n, long.small })
    end)

    it("tells how many bytes each key stands for: all of the prompt in the end", function()
        local texts = { message(rep("a", 3000)), message("b"), message(rep("c", 5000)) }
        local one = chain(chat(texts))
        local positions = {}
        for i = 1, one.n do
            positions[i] = bytes(one, i)
        end
        local first, second = #texts[1], #texts[1] + #", " + #texts[2]
        assert.same({ 2048, first, second, 4096, 6144, second + #", " + #texts[3] }, positions)

        local image = chain(chat({ message(rep("QUJD", prefix.MAX_BYTES / 4)) }))
        assert.equal(prefix.MAX_BYTES, bytes(image, image.n))
        assert.equal(11, bytes(chain('{"prompt": "once upon a"}'), 1))
    end)

    it("has no key twice", function()
        for length = 2000, 2100 do
            local one = chain(chat({ message(rep("a", length)), message("b"), message("c") }))
            local seen = {}
            for i = 1, one.n do
                assert.is_nil(seen[key(one, i)])
                seen[key(one, i)] = true
            end
        end
    end)

    it("is absent without a prompt", function()
        assert.is_false(chain('{"model": "m"}'))
        assert.is_table(chain('{"messages": null}'))
        assert.is_table(chain('{"messages": []}'))
        assert.is_table(chain('{"prompt": ""}'))
        assert.is_table(chain('{"input": "hello", "instructions": "be kind"}'))
    end)
end)


describe("traits.read", function()
    local function weight(body)
        assert(json_scan.scan(body, WANTED, starts, stops, traits.elements))
        local state = { model = { backends = {} } }
        traits.read(state, body, starts, stops)
        return state.weight
    end

    it("weighs a request by n and its prompts", function()
        assert.equal(1, weight('{"messages": [{}, {}, {}]}'))
        assert.equal(3, weight('{"messages": [{}, {}], "n": 3}'))
        assert.equal(3, weight('{"n": "3"}'))
        assert.equal(2, weight('{"prompt": ["a", "b"]}'))
        assert.equal(6, weight('{"prompt": [[1, 2], [3]], "n": 3}'))
        assert.equal(1, weight('{"prompt": [1, 2, 3]}'))
        assert.equal(1, weight('{"prompt": "a"}'))
        assert.equal(2, weight('{"input": ["a", "b"]}'))
        assert.equal(1, weight('{"input": [{"role": "user"}, {"role": "user"}]}'))
    end)

    it("keeps the weight between 1 and 1024, whatever is sent", function()
        for _, n in ipairs({ "0", "-5", "null", "true", '"x"', "{}", "NaN", "0.5", '""', "123456789" }) do
            assert.equal(1, weight('{"n": ' .. n .. "}"))
        end
        assert.equal(1024, weight('{"n": 999999}'))
        assert.equal(1024, weight('{"n": Infinity}'))
        assert.equal(2, weight('{"n": 2.5}'))
        assert.equal(1024, weight('{"prompt": [' .. rep('"a", ', 2000) .. '"a"]}'))
    end)
end)
