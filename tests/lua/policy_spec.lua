local policy = require "edge.policy"


describe("least_loaded", function()
    it("takes the smallest load, wherever the turn stands", function()
        for turn = 0, 9 do
            assert.equal(3, policy.least_loaded({ 5, 4, 1, 2 }, 4, turn))
        end
    end)

    it("spreads an idle fleet evenly", function()
        local taken = { 0, 0, 0 }
        for turn = 1, 300 do
            local index = policy.least_loaded({ 0, 0, 0 }, 3, turn)
            taken[index] = taken[index] + 1
        end
        assert.same({ 100, 100, 100 }, taken)
    end)

    it("breaks a tie among the least loaded only", function()
        for turn = 0, 9 do
            assert.is_not.equal(2, policy.least_loaded({ 1, 7, 1 }, 3, turn))
        end
    end)

    it("looks at no more than n loads: the array is reused and may be longer", function()
        assert.equal(1, policy.least_loaded({ 3, 4, 0 }, 2, 5))
    end)

    it("takes the only one", function()
        assert.equal(1, policy.least_loaded({ 9 }, 1, 77))
    end)
end)


describe("round_robin", function()
    it("visits all in turn", function()
        local seen = {}
        for turn = 1, 6 do
            seen[turn] = policy.round_robin({ 1, 1, 1 }, 3, 3, turn)
        end
        assert.same({ 2, 3, 1, 2, 3, 1 }, seen)
    end)
end)


describe("round_robin with weights", function()
    local function counts(weights, turns)
        local total, taken = 0, {}
        for i = 1, #weights do
            total, taken[i] = total + weights[i], 0
        end
        local longest, run, last = 0, 0, nil
        for turn = 1, turns do
            local index = policy.round_robin(weights, #weights, total, turn)
            taken[index] = taken[index] + 1
            run = index == last and run + 1 or 1
            longest, last = math.max(longest, run), index
        end
        return taken, longest
    end

    it("gives each its share in every round", function()
        for _, weights in ipairs({ { 3, 1, 1 }, { 1, 2 }, { 7, 1 }, { 5, 5 }, { 10, 20, 30 }, { 4 } }) do
            local total = 0
            for _, weight in ipairs(weights) do
                total = total + weight
            end
            assert.same(weights, (counts(weights, total)))
        end
    end)

    it("spreads a heavy one over the round", function()
        local _, longest = counts({ 5, 5, 1 }, 1100)
        assert.is_true(longest <= 3)
    end)
end)


describe("waiting_of_others", function()
    it("is nothing while all that the engine has is ours", function()
        assert.equal(0, policy.waiting_of_others(4, 3, 7))
        assert.equal(0, policy.waiting_of_others(4, 3, 9))
    end)

    it("is what exceeds ours, and no more than waits", function()
        assert.equal(2, policy.waiting_of_others(4, 3, 5))
        assert.equal(3, policy.waiting_of_others(4, 3, 0))
        assert.equal(0, policy.waiting_of_others(4, 0, 0))
    end)
end)


describe("score", function()
    it("is what a backend has in flight for its weight, the request included", function()
        assert.equal(3, policy.score(2, 1, 1))
        assert.equal(1.5, policy.score(2, 1, 2))
        assert.equal(6, policy.score(2, 4, 1))
    end)

    it("counts what waits in the engine, and a KV cache that fills", function()
        assert.equal(8, policy.score(2, 1, 1, 5))
        assert.equal(3, policy.score(2, 1, 1, nil, 0))
        assert.is_true(math.abs(policy.score(2, 1, 1, 0, 0.8) - 3.6) < 1e-9)
        assert.is_true(policy.score(2, 1, 1, 0, 1) < 20)
    end)
end)


describe("fits", function()
    it("keeps to the limit, and lets the first be of any weight", function()
        assert.is_true(policy.fits(99, 1, nil))
        assert.is_true(policy.fits(3, 1, 4))
        assert.is_false(policy.fits(4, 1, 4))
        assert.is_true(policy.fits(0, 9, 4))
    end)
end)


describe("within", function()
    it("allows the margin, and a quarter of the least score where that is more", function()
        assert.is_true(policy.within(9, 1, policy.MARGIN_OWN))
        assert.is_false(policy.within(10, 1, policy.MARGIN_OWN))
        assert.is_true(policy.within(5, 1, policy.MARGIN_SESSION))
        assert.is_false(policy.within(6, 1, policy.MARGIN_SESSION))
        assert.is_false(policy.within(5, 1, policy.MARGIN_SHARED))
        assert.is_true(policy.within(50, 40, policy.MARGIN_SHARED))
        assert.is_false(policy.within(51, 40, policy.MARGIN_OWN))
    end)
end)


describe("random_two", function()
    it("draws every pair of two different ones equally often", function()
        local seen = {}
        for i = 0, 99 do
            for j = 0, 99 do
                local one, two = policy.random_two(5, i / 100, j / 100)
                assert.is_true(one ~= two and one >= 1 and one <= 5 and two >= 1 and two <= 5)
                local pair = one .. " " .. two
                seen[pair] = (seen[pair] or 0) + 1
            end
        end
        for _, count in pairs(seen) do
            assert.equal(500, count)
        end
    end)
end)


describe("rendezvous", function()
    local seeds, equal = { 0x9abcdef1, 17, 0xffffffff, 5 }, { 1, 1, 1, 1 }

    it("spreads keys in proportion to the weights", function()
        local taken = { 0, 0, 0, 0 }
        for key = 1, 20000 do
            local index = policy.rendezvous(key, seeds, { 1, 1, 2, 1 }, 4)
            taken[index] = taken[index] + 1
        end
        for i, share in ipairs({ 4000, 4000, 8000, 4000 }) do
            assert.is_true(math.abs(taken[i] - share) < share / 10)
        end
    end)

    it("moves no key but those of the backend that is gone", function()
        for key = 1, 1000 do
            local before = policy.rendezvous(key * 2654435761 % 4294967296, seeds, equal, 4)
            local after = policy.rendezvous(key * 2654435761 % 4294967296, seeds, equal, 3)
            assert.is_true(before == after or before == 4)
        end
    end)
end)
