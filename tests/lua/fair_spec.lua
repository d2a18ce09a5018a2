local fair = require "edge.fair"


-- Serves `count` tickets of `backlogs` (key -> {weight, cost, waiting}), all there from the beginning;
-- returns key -> served, and the keys in the order in which they were served.
local function serve(backlogs, count)
    local tickets, number = {}, 0
    for key, backlog in pairs(backlogs) do
        local finish = 0
        for _ = 1, backlog.waiting do
            local tag
            tag, finish = fair.tag(0, finish, backlog.cost or 1, backlog.weight or 1)
            number = number + 1
            tickets[#tickets + 1] = { key = key, tag = tag, number = number }
        end
    end
    table.sort(tickets, function(a, b) return fair.before(a.tag, a.number, b.tag, b.number) end)
    local served, order = {}, {}
    for i = 1, count do
        local key = tickets[i].key
        served[key] = (served[key] or 0) + 1
        order[i] = key
    end
    return served, order
end


describe("fair between keys", function()
    it("gives two keys the same, however many each has waiting", function()
        local served = serve({ a = { waiting = 1000 }, b = { waiting = 100 } }, 200)
        assert.same({ a = 100, b = 100 }, served)
    end)

    it("gives by weight", function()
        local served = serve({ a = { waiting = 1000, weight = 3 }, b = { waiting = 1000 } }, 400)
        assert.is_true(math.abs(served.a - 300) <= 1)
    end)

    it("counts what requests cost, not how many they are", function()
        local served = serve({ a = { waiting = 1000, cost = 10 }, b = { waiting = 1000 } }, 550)
        assert.is_true(math.abs(served.b - 500) <= 5)
    end)

    it("lets a newcomer begin where service is, not at the beginning of time", function()
        -- A key alone was served up to tag 500; one that comes now shares from here on.
        local tag = fair.tag(500, 0, 1, 1)
        assert.equal(500, tag)
    end)

    it("is first come, first served inside a key, and among equals", function()
        local tag, finish = fair.tag(0, 0, 1, 1)
        local next_tag = fair.tag(0, finish, 1, 1)
        assert.is_true(fair.before(tag, 2, next_tag, 1))
        assert.is_true(fair.before(7, 1, 7, 2))
        assert.is_false(fair.before(7, 2, 7, 1))
        assert.is_false(fair.before(7, 1, 7, 1))
    end)
end)


describe("classes", function()
    it("serve the higher first, and every class at least once in eight", function()
        local firsts = { 0, 0, 0 }
        for turn = 0, 799 do
            local order = fair.order(turn)
            assert.equal(3, #order)
            assert.equal(6, order[1] + order[2] + order[3])
            firsts[order[1]] = firsts[order[1]] + 1
        end
        assert.same({ 600, 100, 100 }, firsts)
    end)

    it("come from the rule, else from the key; the client may lower its own, never raise it", function()
        assert.equal(2, fair.class(nil, nil, nil))
        assert.equal(1, fair.class(nil, "high", nil))
        assert.equal(3, fair.class("low", "high", nil))
        assert.equal(3, fair.class(nil, "high", "low"))
        assert.equal(2, fair.class(nil, "normal", "high"))
        assert.equal(1, fair.class(nil, "high", "nonsense"))
    end)
end)


describe("the share of one key in a line", function()
    it("leaves places for others, and shrinks as the line fills", function()
        local waiting = 0
        while fair.may_join(waiting, waiting, 300) do
            waiting = waiting + 1
        end
        assert.is_true(waiting >= 195 and waiting <= 205)
        assert.is_true(fair.may_join(0, waiting, 300))
        assert.is_true(fair.may_join(0, 0, 1))
    end)

    it("finds the place of a ticket in a sorted list", function()
        local list = {}
        for i, tag in ipairs({ 1, 3, 3, 7 }) do
            list[i] = { tag = tag, number = i }
        end
        assert.equal(1, fair.place({}, { tag = 5, number = 1 }))
        assert.equal(1, fair.place(list, { tag = 0, number = 9 }))
        assert.equal(4, fair.place(list, { tag = 3, number = 9 }))
        assert.equal(5, fair.place(list, { tag = 7, number = 9 }))
        for i, ticket in ipairs(list) do
            assert.equal(i, fair.place(list, ticket))
        end
    end)
end)
