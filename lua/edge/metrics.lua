-- Counts what requests did. Each worker counts in its own tables and adds them to the shared
-- dictionary once a second; a draining worker, whose timers have stopped, at once and when it ends.
-- One dictionary key per series, and a numbered index of the keys, because get_keys would hold the
-- dictionary's lock for all.

local families = require "edge.families"
local promtext = require "edge.promtext"

local exiting = ngx.worker.exiting
local every = ngx.timer.every
local floor = math.floor
local log = ngx.log
local ERR = ngx.ERR
local pairs = pairs
local tonumber = tonumber
local match = string.match

local dict = ngx.shared.edge_metrics

local SIZE = "size"
local INDEX = "index/"
local NO_LABELS = "{}"

local FAMILIES = families.FAMILIES
local GAPS = FAMILIES.itl.bounds


local _M = {}

-- This worker's counters, with what is not in the dictionary yet: list of {key, value}, and by key.
local counters_cache, counter_count = {}, 0
local by_key_cache = {}
-- Gap histograms by model: arrays, because they are counted per chunk.
local gaps_cache = {}


-- Bucket of a gap in whole milliseconds, so that counting a chunk is one look-up.
local GAP_BUCKET = {}
do
    local bucket = 1
    for ms = 0, 2000 do
        while GAPS[bucket] and ms / 1000 > GAPS[bucket] do
            bucket = bucket + 1
        end
        GAP_BUCKET[ms] = bucket
    end
end


local function counter_at(key)
    local counter = by_key_cache[key]
    if not counter then
        counter = { key = key, value = 0 }
        by_key_cache[key] = counter
        counter_count = counter_count + 1
        counters_cache[counter_count] = counter
    end
    return counter
end


-- The counter of `family` with these labels (name, value, ...). Callers keep it: making it costs.
function _M.counter(family, ...)
    return counter_at(family .. (... and promtext.labels(...) or NO_LABELS))
end


function _M.add(counter, value)
    counter.value = counter.value + value
end


local function bucket_of(bounds, seconds)
    for i = 1, #bounds do
        if seconds <= bounds[i] then
            return i
        end
    end
    return #bounds + 1
end


-- Counters of one model's histogram: one per bucket, and `sum`. Made once.
local function make_histogram(family, model)
    local histogram = {
        bounds = FAMILIES[family].bounds,
        sum = counter_at(family .. "/sum/" .. model),
    }
    for i = 1, #histogram.bounds + 1 do
        histogram[i] = counter_at(family .. "/" .. i .. "/" .. model)
    end
    return histogram
end


local histograms_cache = { wait = {}, ttft = {}, itl = {}, duration = {} }


local function histogram_of(family, model)
    local histogram = histograms_cache[family][model]
    if not histogram then
        histogram = make_histogram(family, model)
        histograms_cache[family][model] = histogram
    end
    return histogram
end


-- Counts one observation in seconds for a model.
function _M.observe(family, model, seconds)
    local histogram = histogram_of(family, model)
    _M.add(histogram[bucket_of(histogram.bounds, seconds)], 1)
    _M.add(histogram.sum, seconds)
end


-- The gap counts of a model, for add_gap.
function _M.gaps(model)
    local gaps = gaps_cache[model.id]
    if not gaps then
        gaps = { sum = 0 }
        for i = 1, #GAPS + 1 do
            gaps[i] = 0
        end
        gaps_cache[model.id] = gaps
    end
    return gaps
end


function _M.add_gap(gaps, seconds)
    local bucket = GAP_BUCKET[floor(seconds * 1000 + 0.5)] or #GAPS + 1
    gaps[bucket] = gaps[bucket] + 1
    gaps.sum = gaps.sum + seconds
end


local function collect_gaps()
    for model, gaps in pairs(gaps_cache) do
        local histogram = histogram_of("itl", model)
        for i = 1, #gaps do
            _M.add(histogram[i], gaps[i])
            gaps[i] = 0
        end
        _M.add(histogram.sum, gaps.sum)
        gaps.sum = 0
    end
end


-- Begins a series, or adds to it when it is there. The dictionary never evicts: a full one refuses
-- new series.
local function store(key, value)
    local ok, err = dict:safe_add(key, value)
    if ok then
        local number
        number, err = dict:incr(SIZE, 1, 0)
        ok = number and dict:safe_set(INDEX .. number, key)

    elseif err == "exists" then
        ok, err = dict:incr(key, value)
    end
    if not ok then
        log(ERR, "edge: metrics: could not count ", key, ": ", err)
    end
end


-- Adds this worker's increments to the dictionary.
function _M.flush()
    collect_gaps()
    for i = 1, counter_count do
        local counter = counters_cache[i]
        if counter.value ~= 0 then
            store(counter.key, counter.value)
            counter.value = 0
        end
    end
end


-- Called after each request: a draining worker has no timer left to do it.
function _M.settle()
    if exiting() then
        _M.flush()
    end
end


-- All series: counters as family -> list of {labels, value}, histograms as family -> model ->
-- counts.
local function gather()
    local counters, histograms = {}, {}
    for number = 1, dict:get(SIZE) or 0 do
        local key = dict:get(INDEX .. number) or ""
        local value = dict:get(key) or 0
        local family, labels = match(key, "^([%a_]+)({.*})$")
        if family then
            counters[family] = counters[family] or {}
            local list = counters[family]
            list[#list + 1] = { labels ~= NO_LABELS and labels or "", value }

        elseif key ~= "" then
            local name, bucket, model = match(key, "^(%a+)/(%w+)/(.*)$")
            histograms[name] = histograms[name] or {}
            local of = histograms[name][model] or {}
            of[tonumber(bucket) or bucket] = value
            histograms[name][model] = of
        end
    end
    return counters, histograms
end


-- The families above as Prometheus text, appended to `out`.
function _M.write(out)
    _M.flush()
    local counters, histograms = gather()
    for _, id in ipairs(families.ORDER) do
        local family = FAMILIES[id]
        promtext.family(out, family.name, family.kind, family.help)
        for _, series in ipairs(counters[id] or family.none or {}) do
            promtext.sample(out, family.name, series[1], series[2])
        end
        for model, counts in pairs(histograms[id] or {}) do
            promtext.histogram(out, family.name, { "model", model }, family.bounds, counts,
                               counts.sum or 0)
        end
    end
end


-- How many requests each backend has ended since the edge's first start: backend id -> number.
function _M.requests_by_backend()
    local totals = {}
    for number = 1, dict:get(SIZE) or 0 do
        local key = dict:get(INDEX .. number) or ""
        local backend = match(key, '^requests{.*backend="([^"]*)"')
        if backend then
            totals[backend] = (totals[backend] or 0) + (dict:get(key) or 0)
        end
    end
    return totals
end


function _M.init_worker()
    local ok, err = every(1, function(premature)
        if not premature then
            _M.flush()
        end
    end)
    if not ok then
        log(ERR, "edge: metrics: could not start: ", err)
    end
end


return _M
