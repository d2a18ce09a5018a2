local rules = require "edge.rules"


local function number_of(list, var)
    local rule = rules.find(rules.prepare(list), var)
    return rule and rule.number
end


describe("a rule's path", function()
    local list = { { path = "/team-a" }, { path = "/team/b" } }

    it("is a prefix that ends with a part", function()
        for uri, want in pairs({
            ["/team-a/v1/models"] = 1, ["/team-a"] = 1, ["/team-a/"] = 1, ["/team/b/v1/models"] = 2,
            ["/team-ab/v1/models"] = false, ["/team-"] = false, ["/TEAM-A/v1/models"] = false,
            ["/team/v1/models"] = false, ["/x/team-a/v1/models"] = false, ["/"] = false, [""] = false,
        }) do
            assert.equal(want or nil, number_of(list, { uri = uri }), uri)
        end
    end)

    it("is taken off", function()
        for uri, want in pairs({
            ["/team-a/v1/models"] = "/v1/models", ["/team-a"] = "/", ["/team-a/"] = "/",
            ["/team-a/team-a/v1/models"] = "/team-a/v1/models",
        }) do
            local state = { rule = false, path = false }
            assert.equal(want, rules.follow(state, rules.prepare(list), { uri = uri }))
            assert.same({ 1, want }, { state.rule.number, state.path })
        end
    end)

    it("leaves the request alone that no rule matches", function()
        local state = { rule = false, path = false }
        assert.equal("/v1/models", rules.follow(state, rules.prepare(list), { uri = "/v1/models" }))
        assert.same({ rule = false, path = false }, state)
    end)

    it("survives a request that nginx gave up before it had an address", function()
        assert.is_nil(rules.follow({ rule = false }, rules.prepare(list), {}))
    end)
end)


describe("a rule's host", function()
    local list = { { host = "Chat.example.com" }, { host = "*.example.com" } }

    it("is equal, or ends like the pattern", function()
        for host, want in pairs({
            ["chat.example.com"] = 1, ["a.example.com"] = 2, ["a.b.example.com"] = 2,
            ["example.com"] = false, [".example.com"] = false, ["badexample.com"] = false,
            ["chat.example.com.evil.org"] = false, [""] = false,
        }) do
            assert.equal(want or nil, number_of(list, { uri = "/", host = host }), host)
        end
        assert.is_nil(number_of(list, { uri = "/" }))
    end)
end)


describe("a rule's header", function()
    local list = {
        { header = { name = "X-Team", value = "a" } }, { header = { name = "x-team", value = "B" } },
        { header = { name = "X-Other-Name", value = "a" } },
    }

    it("has exactly the value", function()
        assert.equal(1, number_of(list, { uri = "/", http_x_team = "a" }))
        assert.equal(2, number_of(list, { uri = "/", http_x_team = "B" }))
        assert.equal(3, number_of(list, { uri = "/", http_x_other_name = "a" }))
        for _, value in ipairs({ "A", "b", "", "aa", "a, a", false }) do
            assert.is_nil(number_of(list, { uri = "/", http_x_team = value or nil }))
        end
    end)
end)


describe("rules", function()
    it("want all conditions of one, and the first wins", function()
        local list = {
            { path = "/a", host = "h.test", header = { name = "X-A", value = "1" } },
            { path = "/a", host = "h.test" },
            { path = "/a" },
        }
        assert.equal(1, number_of(list, { uri = "/a/x", host = "h.test", http_x_a = "1" }))
        assert.equal(2, number_of(list, { uri = "/a/x", host = "h.test", http_x_a = "2" }))
        assert.equal(3, number_of(list, { uri = "/a/x", host = "other.test", http_x_a = "1" }))
        assert.is_nil(number_of(list, { uri = "/b/x", host = "h.test", http_x_a = "1" }))
    end)

    it("are false when there are none, so that a request pays for one look", function()
        assert.is_false(rules.prepare({}))
    end)
end)


describe("what a request may see", function()
    local slow, fast = { model = "m", pool = "slow" }, { model = "m", pool = "fast" }
    local plain = { model = "n" }
    local fleet = {
        names = { m = "m", alias = "m", n = "n" },
        models = {
            m = { id = "m", pools = { slow = { backends = { slow } }, fast = { backends = { fast } } } },
            n = { id = "n", pools = {} },
        },
    }
    local m, n = fleet.models.m, fleet.models.n

    it("is all without a rule, or with one that names neither model nor pool", function()
        for _, rule in ipairs({ false, { model = false, pool = false } }) do
            assert.equal(m, rules.scope(m, rule))
            assert.is_true(rules.names(rule, fleet, n))
            assert.is_true(rules.sees(rule, fleet, plain))
        end
        assert.equal(m, rules.scope(m, nil))
    end)

    it("is the pool", function()
        local rule = { model = false, pool = "fast" }
        assert.equal(m.pools.fast, rules.scope(m, rule))
        assert.is_nil(rules.scope(n, rule))
        assert.same({ false, true, false },
            { rules.sees(rule, fleet, slow), rules.sees(rule, fleet, fast), rules.sees(rule, fleet, plain) })
    end)

    it("is the model, by any of its names", function()
        local rule = { model = "alias", pool = false }
        assert.same({ true, false }, { rules.names(rule, fleet, m), rules.names(rule, fleet, n) })
        assert.same({ true, false }, { rules.sees(rule, fleet, slow), rules.sees(rule, fleet, plain) })
        assert.is_false(rules.sees({ model = "alias", pool = "fast" }, fleet, slow))
    end)

    it("includes models that may serve instead", function()
        m.fallback = { "n" }
        assert.is_true(rules.sees({ model = "alias", pool = false }, fleet, plain))
        assert.is_false(rules.sees({ model = "alias", pool = "fast" }, fleet, plain))
        assert.is_false(rules.sees({ model = "n", pool = false }, fleet, slow))
        m.fallback = nil
    end)
end)
