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
            seen[turn] = policy.round_robin(3, turn)
        end
        assert.same({ 2, 3, 1, 2, 3, 1 }, seen)
    end)
end)
