-- What metrics.lua counts: name, kind and help of each family, the bounds of the histograms. Pure.
-- docs/metrics.md tells people what each means; a test holds the two equal.

-- Upper bounds in seconds.
local QUEUE_WAITS = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120 }
local WAITS = { 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 30, 60 }
local GAPS = { 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2 }
local TOTALS = { 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300, 600 }

-- Without labels there is one series, which begins at 0: Prometheus sees no rise in a series that
-- begins with its first event.
local ZERO = { { "", 0 } }


local _M = {}

_M.FAMILIES = {
    requests = {
        name = "signalbox_requests_total", kind = "counter",
        help = "Requests by model, backend, status code and how they ended.",
    },
    errors = {
        name = "signalbox_errors_total", kind = "counter",
        help = "Requests that the edge itself answered with an error, by the error's code.",
    },
    tokens = {
        name = "signalbox_tokens_total", kind = "counter",
        help = "Tokens as the engines reported them.",
    },
    retries = {
        name = "signalbox_connect_retries_total", kind = "counter",
        help = "Requests offered to another engine after a failed connect.",
    },
    unretried = {
        name = "signalbox_connect_retries_refused_total", kind = "counter",
        help = "Requests not offered to another engine because the model's retry budget was spent.",
    },
    fallbacks = {
        name = "signalbox_fallbacks_total", kind = "counter",
        help = "Requests for a model without a ready backend that another model served.",
    },
    connect_failures = {
        name = "signalbox_connect_failures_total", kind = "counter",
        help = "Connects to a backend that failed, TLS included; nothing was sent.",
    },
    prefix_prompt = {
        name = "signalbox_prefix_prompt_bytes_total", kind = "counter",
        help = "Bytes of prompts that were routed by their beginnings, as far as they were hashed.",
    },
    prefix_known = {
        name = "signalbox_prefix_known_bytes_total", kind = "counter",
        help = "Bytes of those prompts that their backend had probably seen before.",
    },
    prefix_shared = {
        name = "signalbox_prefix_shared_bytes_total", kind = "counter",
        help = "Bytes of those prompts that some backend of the model had probably seen before.",
    },
    prefix_salted = {
        name = "signalbox_prefix_salted_bytes_total", kind = "counter",
        help = "Bytes of those prompts that began like an earlier one, with a cache_salt of their own.",
    },
    deaths = {
        name = "signalbox_worker_deaths_total", kind = "counter", none = ZERO,
        help = "Workers of the edge that ended without their log phase: killed or crashed.",
    },
    reaped = {
        name = "signalbox_slots_reaped_total", kind = "counter", none = ZERO,
        help = "Slots taken back from workers that are gone.",
    },
    trips = {
        name = "signalbox_state_round_trips_total", kind = "counter", none = ZERO,
        help = "Calls of Redis, where it holds what several edges share.",
    },
    trip_seconds = {
        name = "signalbox_state_round_trip_seconds_total", kind = "counter", none = ZERO,
        help = "Time that these calls took.",
    },
    wait = {
        name = "signalbox_queue_wait_seconds", kind = "histogram", bounds = QUEUE_WAITS,
        help = "Time that a request waited for a backend below its limit.",
    },
    ttft = {
        name = "signalbox_ttft_seconds", kind = "histogram", bounds = WAITS,
        help = "Time from the request's arrival to the first event that is not a comment.",
    },
    itl = {
        name = "signalbox_itl_seconds", kind = "histogram", bounds = GAPS,
        help = "Time between two reads of a stream (a read may carry several tokens).",
    },
    duration = {
        name = "signalbox_request_duration_seconds", kind = "histogram", bounds = TOTALS,
        help = "Time from the request's arrival to its last byte.",
    },
}
-- In this order they are written.
_M.ORDER = { "requests", "errors", "tokens", "retries", "unretried", "fallbacks", "connect_failures",
             "prefix_prompt", "prefix_known", "prefix_shared", "prefix_salted", "deaths", "reaped", "trips",
             "trip_seconds", "wait", "ttft", "itl", "duration" }


return _M
