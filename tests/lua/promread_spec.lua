local promread = require "edge.promread"


local function lines(...)
    return table.concat({ ... }, "\n") .. "\n"
end


describe("read", function()
    it("finds what vLLM 0.32 writes", function()
        local sample = promread.read(lines(
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            'vllm:num_requests_running{engine="0",model_name="tiny"} 2.0',
            'vllm:num_requests_waiting{engine="0",model_name="tiny"} 4.0',
            'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0',
            'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25',
            'vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 203.0',
            'vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7959606278494852e+09',
            'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 100.0',
            'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1.5e+03',
            'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="x"} 7.0',
            'vllm:generation_tokens_total{engine="0",model_name="tiny"} 20.0',
            'vllm:num_preemptions_total{engine="0",model_name="tiny"} 3.0',
            'vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny"} 3.0',
            'vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 5.0'))
        assert.same({
            running = 2, waiting = 4, kv_usage = 0.25, prefix_queries = 203, prefix_hits = 100,
            preemptions = 3, prompt_tokens = 1500, generation_tokens = 20, iterations = 5, tokens = 1525,
        }, sample)
    end)

    it("knows the names of older versions", function()
        local sample = promread.read(lines(
            'vllm:gpu_cache_usage_perc{model_name="m"} 0.5',
            'vllm:gpu_prefix_cache_queries_total{model_name="m"} 10.0',
            'vllm:gpu_prefix_cache_hits_total{model_name="m"} 4.0'))
        assert.same({ kv_usage = 0.5, prefix_queries = 10, prefix_hits = 4 }, sample)
    end)

    it("takes the newer name when both are there, in any order", function()
        local new, old = 'vllm:kv_cache_usage_perc{m="m"} 0.25', 'vllm:gpu_cache_usage_perc{m="m"} 0.75'
        assert.equal(0.25, promread.read(lines(new, old)).kv_usage)
        assert.equal(0.25, promread.read(lines(old, new)).kv_usage)
    end)

    it("leaves out what is not there: missing is not zero", function()
        local sample = promread.read("python_info 1.0\n")
        assert.same({}, sample)
        assert.equal(0, promread.read("vllm:num_requests_running 0.0\n").running)
    end)

    it("sums over engines of one server, and averages ratios", function()
        local sample = promread.read(lines(
            'vllm:num_requests_running{engine="0"} 2.0', 'vllm:num_requests_running{engine="1"} 3.0',
            'vllm:kv_cache_usage_perc{engine="0"} 0.2', 'vllm:kv_cache_usage_perc{engine="1"} 0.6'))
        assert.equal(5, sample.running)
        assert.is_true(math.abs(sample.kv_usage - 0.4) < 1e-9)
    end)

    it("reads labels with braces, spaces and quotes in their values, and time stamps", function()
        local sample = promread.read(
            'vllm:num_requests_running{model_name="a} 7 {\\"b"} 3.0 1700000000000\n')
        assert.equal(3, sample.running)
    end)

    it("takes no NaN, no infinity, nothing below zero, no words", function()
        for _, value in ipairs({ "NaN", "+Inf", "-Inf", "-1.0", "many", "" }) do
            assert.is_nil(promread.read("vllm:num_requests_running " .. value .. "\n").running, value)
        end
    end)

    it("stands any text, ends in the middle of a line too", function()
        assert.same({}, promread.read(""))
        assert.same({}, promread.read("vllm:num_requests_running"))
        assert.same({}, promread.read("vllm:num_requests_running{"))
        assert.same({}, promread.read("<html>vllm:num_requests_running 3</html>"))
        assert.equal(3, promread.read("vllm:num_requests_running 3").running)
    end)

    it("is bounded", function()
        local text = ("vllm:other 1\n"):rep(600000) .. "vllm:num_requests_running 3\n"
        local began = os.clock()
        assert.same({}, promread.read(text))
        assert.is_true(os.clock() - began < 1)
    end)

    it("reads a real engine's hundred kilobytes quickly", function()
        local text = ('vllm:request_time_bucket{engine="0",le="0.5",model_name="m"} 1.0\n'):rep(1500)
            .. 'vllm:generation_tokens_total{engine="0"} 5.0\n'
        promread.read(text)
        local began = os.clock()
        for _ = 1, 20 do
            assert.equal(5, promread.read(text).tokens)
        end
        assert.is_true((os.clock() - began) / 20 < 0.005)
    end)
end)
