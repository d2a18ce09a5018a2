local engine_state = require "edge.engine_state"

local S = { interval = 1, metrics = 2, window = 5, idle = 30, suspect = 5, answer = 5 }


-- An engine on a clock of its own. Every second /health answers and, unless `blind`, /metrics is
-- read.
local function simulation(options)
    local sim = { time = 1000, tokens = 0, running = 0, in_flight = 0, heard = 0, trials = 0 }
    options = options or {}
    local engine = engine_state.new(sim.time, true)
    sim.engine = engine

    function sim.state()
        return (engine_state.judge(engine))
    end

    function sim.second()
        sim.time = sim.time + 1
        if sim.refuses then
            engine_state.missed(engine, "connection refused", false, sim.time, S)
        elseif sim.late then
            engine_state.missed(engine, "timeout", true, sim.time, S)
        else
            engine_state.reached(engine)
            if not options.blind then
                engine_state.measured(engine, {
                    tokens = sim.tokens, running = sim.running, waiting = sim.waiting,
                }, sim.time)
            end
        end
        engine_state.passed(engine, sim.in_flight, sim.heard, 0, sim.time, S)
        if sim.trial_ends and sim.time >= sim.trial_ends then
            sim.trial_ends = nil
            engine_state.trial_ended(engine, sim.trial_status, "timeout", sim.time, S)
        elseif engine_state.wants_trial(engine, sim.time, S) then
            engine_state.trial_begins(engine, sim.time)
            sim.trials = sim.trials + 1
            if sim.generates then
                sim.tokens = sim.tokens + 2
                engine_state.trial_ended(engine, 200, nil, sim.time, S)
            else
                sim.trial_ends = sim.time + S.window
            end
        end
    end

    -- Seconds until the state is `wanted`, at most `most`; `each` runs before every second.
    function sim.until_state(wanted, most, each)
        for second = 1, most do
            if each then
                each()
            end
            sim.second()
            if sim.state() == wanted then
                return second
            end
        end
    end

    sim.generates = true
    sim.second()
    return sim
end


describe("an engine", function()
    it("is starting until it has answered once, however long that takes", function()
        local engine = engine_state.new(0, true)
        for second = 1, 600 do
            engine_state.missed(engine, "connection refused", false, second, S)
        end
        assert.same({ "starting", "connection refused" }, { engine_state.judge(engine) })
        engine_state.reached(engine)
        assert.equal("ready", (engine_state.judge(engine)))
    end)

    it("is down after two refusals, not after one", function()
        local sim = simulation()
        sim.refuses = true
        sim.second()
        assert.equal("ready", sim.state())
        sim.second()
        assert.equal("down", sim.state())
    end)

    it("comes back after one trial, not by answering /health", function()
        local sim = simulation()
        sim.refuses = true
        sim.until_state("down", 3)
        sim.refuses, sim.generates = false, false
        sim.second()
        assert.equal("down", sim.state())
        assert.equal(1, sim.trials)
        assert.is_number(sim.until_state("suspect", 8))
        sim.generates = true
        assert.is_true(sim.until_state("ready", 8) <= 6)
    end)

    it("that flaps is tried anew each time", function()
        local sim = simulation()
        for round = 1, 5 do
            sim.refuses = true
            sim.until_state("down", 3)
            sim.refuses = false
            assert.equal(1, sim.until_state("ready", 5))
            assert.equal(round, sim.trials)
        end
    end)

    it("that never stops working is tried never", function()
        local sim = simulation()
        sim.running, sim.in_flight = 8, 8
        assert.is_nil(sim.until_state("suspect", 600, function() sim.tokens = sim.tokens + 40 end))
        assert.equal(0, sim.trials)
    end)
end)


describe("counters that rise", function()
    local function at_work(now)
        local engine = engine_state.new(now, true)
        engine_state.reached(engine)
        engine_state.measured(engine, { tokens = 10, running = 1 }, now)
        engine_state.passed(engine, 1, 0, 0, now, S)
        return engine
    end

    it("tell nothing new when bytes have come since the last read", function()
        local engine = at_work(100)
        engine_state.passed(engine, 1, 100.3, 0, 100.5, S)
        engine_state.measured(engine, { tokens = 20, running = 1 }, 102)
        assert.equal(100.3, engine.moved)
    end)

    it("are progress at the moment of the read when nothing else has told of it", function()
        local engine = at_work(100)
        engine_state.measured(engine, { tokens = 20, running = 1 }, 102)
        assert.equal(102, engine.moved)
        engine_state.measured(engine, { tokens = 30, running = 1 }, 104)
        assert.equal(104, engine.moved)
    end)

    it("leave an engine in doubt once nothing has moved for half a window", function()
        local engine = at_work(100)
        assert.is_false(engine_state.in_doubt(engine, 102, S))
        assert.is_true(engine_state.in_doubt(engine, 103, S))
        engine_state.measured(engine, { tokens = 20, running = 1 }, 103)
        assert.is_false(engine_state.in_doubt(engine, 104, S))
    end)
end)


describe("a hung engine with /health 200", function()
    local function hang(options, running)
        local sim = simulation(options)
        sim.running, sim.in_flight = 4, 4
        for _ = 1, 20 do
            sim.tokens = sim.tokens + 10
            sim.heard = sim.time + 1
            sim.second()
        end
        assert.equal("ready", sim.state())
        sim.generates, sim.running = false, running
        return sim
    end

    it("is suspect within two windows, with gauges that stand still", function()
        local sim = hang(nil, 4)
        assert.is_true(sim.until_state("suspect", 60) <= 2 * S.window + 1)
    end)

    it("is suspect as soon with gauges that fell to stale zeros: requests in flight at us tell", function()
        local sim = hang(nil, 0)
        assert.is_true(sim.until_state("suspect", 60) <= 2 * S.window + 1)
    end)

    it("is suspect without any metrics after two trials", function()
        local sim = hang({ blind = true }, 0)
        assert.is_true(sim.until_state("suspect", 60) <= 4 * S.window)
    end)

    it("is back after it goes on", function()
        local sim = hang(nil, 4)
        sim.until_state("suspect", 60)
        sim.tokens = sim.tokens + 1
        assert.equal(1, sim.until_state("ready", 2))
    end)

    it("is back after a trial when its requests have gone", function()
        local sim = hang(nil, 0)
        sim.until_state("suspect", 60)
        sim.in_flight = 0
        assert.is_nil(sim.until_state("ready", 60))
        sim.generates = true
        assert.is_true(sim.until_state("ready", 60) <= 2 * S.suspect)
    end)

    it("that is idle is found within its probe interval", function()
        local sim = simulation()
        sim.generates = false
        assert.is_true(sim.until_state("suspect", 100) <= S.idle + S.window + 1)
    end)

    it("without completions gets requests again once those in flight have gone", function()
        local sim = simulation()
        sim.engine.can_try = false
        sim.running, sim.in_flight = 1, 1
        assert.is_true(sim.until_state("suspect", 60) <= 2 * S.window + 1)
        sim.running, sim.in_flight = 0, 0
        assert.equal(1, sim.until_state("ready", 2))
    end)
end)


describe("a busy engine", function()
    it("that answers probes late is busy, not down, as long as it produces tokens", function()
        local sim = simulation()
        sim.in_flight, sim.late = 8, true
        for _ = 1, 120 do
            sim.heard = sim.time + 1
            sim.second()
            assert.equal("busy", sim.state())
        end
        sim.late = false
        sim.second()
        assert.equal("ready", sim.state())
    end)

    it("whose steps take longer than a window is not accused: its step counter moves", function()
        local sim = simulation()
        sim.running, sim.in_flight = 1, 1
        local n = 0
        local function step()
            n = n + 1
            if n % 9 == 0 then
                sim.tokens = sim.tokens + 1  -- one step of a long prefill every nine seconds
            end
            sim.generates = false
        end
        assert.is_nil(sim.until_state("suspect", 300, step))
    end)

    it("whose trial waits behind other requests is not accused", function()
        local sim = simulation({ blind = true })
        sim.in_flight, sim.generates = 1, false
        sim.heard = sim.time
        local function others()
            if sim.time % 8 == 0 then
                sim.heard = sim.time
            end
        end
        assert.is_nil(sim.until_state("suspect", 300, others))
        assert.is_true(sim.trials > 0)
    end)

    it("is called busy when requests wait inside it, and does not flicker", function()
        local sim = simulation()
        sim.waiting = 3
        sim.second()
        assert.equal("ready", sim.state())
        sim.second()
        assert.equal("busy", sim.state())
        sim.second()
        sim.waiting = 0
        sim.second()
        assert.equal("busy", sim.state())
        sim.second()
        assert.equal("ready", sim.state())
    end)

    it("that refuses a trial because it is full has done no wrong", function()
        local sim = simulation()
        for _ = 1, 20 do
            engine_state.trial_begins(sim.engine, sim.time)
            engine_state.trial_ended(sim.engine, 503, nil, sim.time, S)
        end
        assert.equal("ready", sim.state())
    end)

    it("is not accused because a client reads slowly: the trial speaks for it", function()
        local sim = simulation()
        sim.in_flight = 1
        assert.is_nil(sim.until_state("suspect", 300))
        assert.is_true(sim.trials >= 10)
    end)
end)


describe("an engine that says that it runs nothing", function()
    it("is not accused by our own count alone, when no trial has spoken", function()
        local sim = simulation()
        sim.in_flight, sim.generates, sim.trial_status = 1, false, 503
        assert.is_nil(sim.until_state("suspect", 100))
    end)
end)


describe("faults", function()
    it("have it tried early, and decide nothing", function()
        local sim = simulation()
        engine_state.passed(sim.engine, 0, 0, 3, sim.time, S)
        assert.is_true(engine_state.wants_trial(sim.engine, sim.time, S))
        sim.second()
        assert.equal("ready", sim.state())
        assert.equal(1, sim.trials)
    end)

    it("put an engine out that answers every generation with 500", function()
        local sim = simulation()
        engine_state.passed(sim.engine, 0, 0, 3, sim.time, S)
        engine_state.trial_begins(sim.engine, sim.time)
        engine_state.trial_ended(sim.engine, 500, nil, sim.time, S)
        assert.equal("suspect", sim.state())
    end)

    it("of /metrics are no hang: what it last said of running requests is old", function()
        local sim = simulation({ blind = true })
        engine_state.measured(sim.engine, { tokens = 5, running = 3 }, sim.time)
        engine_state.unmeasured(sim.engine)
        assert.is_nil(sim.until_state("suspect", 100))
    end)

    it("of counters that begin anew are no progress", function()
        local sim = simulation()
        sim.tokens = 500
        sim.second()
        local moved = sim.engine.moved
        sim.tokens = 3
        sim.second()
        assert.equal(moved, sim.engine.moved)
    end)
end)


describe("a misconfigured engine", function()
    it("refuses our key", function()
        for _, status in ipairs({ 401, 403 }) do
            local sim = simulation()
            engine_state.listed(sim.engine, status)
            assert.equal("misconfigured", sim.state())
            engine_state.listed(sim.engine, 200, true, "m")
            assert.equal("ready", sim.state())
        end
    end)

    it("serves another model, and says which", function()
        local sim = simulation()
        engine_state.listed(sim.engine, 200, false, "other")
        local state, reason = engine_state.judge(sim.engine)
        assert.equal("misconfigured", state)
        assert.is_truthy(reason:find("other", 1, true))
        engine_state.trial_begins(sim.engine, sim.time)
        engine_state.trial_ended(sim.engine, 404, nil, sim.time, S)
        assert.equal("misconfigured", sim.state())
    end)

    it("is none when it takes our name without listing it", function()
        local sim = simulation()
        engine_state.listed(sim.engine, 200, false, "/models/x.gguf")
        sim.second()
        assert.equal("ready", sim.state())
        engine_state.listed(sim.engine, 200, false, "/models/x.gguf")
        assert.equal("ready", sim.state())
        engine_state.listed(sim.engine, 200, false, "another")
        assert.equal("misconfigured", sim.state())
    end)

    it("is none because of other 4xx", function()
        for _, status in ipairs({ 400, 404, 405, 422, 429 }) do
            local sim = simulation()
            engine_state.listed(sim.engine, status)
            engine_state.trial_begins(sim.engine, sim.time)
            engine_state.trial_ended(sim.engine, status, nil, sim.time, S)
            assert.equal("ready", sim.state())
        end
    end)
end)


describe("what another worker knew", function()
    it("is kept by the one that takes over", function()
        for _, state in ipairs({ "ready", "busy", "down", "suspect", "misconfigured", "starting" }) do
            local engine = engine_state.new(0, true)
            engine_state.adopt(engine, state, "why")
            assert.equal(state == "busy" and "ready" or state, (engine_state.judge(engine)))
        end
    end)
end)
