local routes = require "edge.routes"


describe("the allow-list", function()
    it("knows the inference paths with their method, kind and dialect", function()
        for path, want in pairs({
            ["/v1/chat/completions"] = { "json", "POST", "openai" },
            ["/v1/completions"] = { "json", "POST", "openai" },
            ["/v1/embeddings"] = { "json", "POST", "openai" },
            ["/v1/responses"] = { "json", "POST", "openai" },
            ["/v1/messages"] = { "json", "POST", "anthropic" },
            ["/v1/messages/count_tokens"] = { "json", "POST", "anthropic" },
            ["/v2/rerank"] = { "json", "POST", "openai" },
            ["/tokenize"] = { "json", "POST", "openai" },
            ["/v1/audio/transcriptions"] = { "multipart", "POST", "openai" },
            ["/v1/models"] = { "models", "GET", "openai" },
        }) do
            local route = routes.find(path)
            assert.same(want, { route.kind, route.methods[want[2]] and want[2], route.dialect })
            assert.equal(path, route.path)
        end
    end)

    it("finds ids, with slashes in model names", function()
        local route, id = routes.find("/v1/models/org/name:tag")
        assert.same({ "model", "org/name:tag" }, { route.kind, id })
        route, id = routes.find("/v1/responses/resp_12-ab")
        assert.same({ "response", "resp_12-ab" }, { route.kind, id })
        assert.is_true(route.methods.GET)
        route, id = routes.find("/v1/responses/resp_1/cancel")
        assert.same({ "response", "resp_1" }, { route.kind, id })
        assert.is_true(route.methods.POST)
    end)

    it("has no other path", function()
        for _, path in ipairs({
            "/", "/invocations", "/metrics", "/health", "/load", "/version", "/sleep", "/wake_up",
            "/collective_rpc", "/reset_prefix_cache", "/scale_elastic_ep", "/v1/load_lora_adapter",
            "/inference/v1/generate", "/v1/chat/completions/", "/v1/chat/completions/render",
            "/v1/chat/completions/batch", "/v1/Chat/Completions", "/v1/responses/",
            "/v1/responses/a/b", "/v1/models/", "/docs", "/openapi.json",
        }) do
            assert.is_nil(routes.find(path), path)
        end
    end)
end)
