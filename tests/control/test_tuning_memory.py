"""The arithmetic of GPU memory. Whether it is vLLM's, tests/vllm/test_kv_arithmetic.py asks vLLM itself."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from control.cli import main
from control.errors import TuningError
from control.fleet.schema import Engine
from control.paths import REPOSITORY
from control.tuning.architecture import read, stages
from control.tuning.cards import CARDS, GIB, find
from control.tuning.kv_cache import block_size, layout
from control.tuning.memory import activation_peak, budget, graph_memory, graph_sizes
from control.tuning.model_files import read_weights
from control.tuning.settings import Settings, of_engine, resolved
from control.tuning.weights import of_config
from tests.support.model_configs import ALL, DEEPSEEK_7B, GPT_OSS_20B, LLAMA3_8B, SMOLLM2, Config

(RTX_4090,) = find("4090")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["--fleet", "/nowhere/fleet.yaml", "plan", *map(str, arguments)])


def config_file(folder: Path, config: Config) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


def planned(folder: Path, config: Config, *arguments: str) -> dict[str, Any]:
    result = run("it", "--config", config_file(folder, config), "--json", *arguments)
    assert result.exit_code in (0, 1) and not result.stderr, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# The article: a 24 GB card, deepseek-llm-7b; 8192/128 failed, 2048/32 worked.


def test_the_article_in_numbers(tmp_path: Path) -> None:
    def card(tokens: int, sequences: int, length: int = 4096) -> dict[str, Any]:
        found = planned(
            tmp_path, DEEPSEEK_7B, "--card", "4090", "--max-num-batched-tokens", str(tokens), "--max-num-seqs",
            str(sequences), "--max-model-len", str(length), "--gpu-memory-utilization", "0.9", "--length", "1500",
        )  # fmt: skip
        assert found["kv_bytes_per_token"] == 491_520  # no grouped heads: 30 layers × 2 × 32 heads × 128 × 2 bytes
        return {**found, **found["cards"][0]}

    failed, worked = card(8192, 128), card(2048, 32)
    assert failed["weights"] == worked["weights"] == pytest.approx(12.87 * GIB, rel=0.005)
    # A large step takes memory that the cache then lacks; and many sequences share what is left.
    assert failed["kv_memory"] < worked["kv_memory"] - 0.7 * GIB
    for found, tokens, each, real in ((failed, 14_592, 112, 9), (worked, 16_480, 512, 10)):
        assert found["kv_tokens"] == found["kv_memory"] // (491_520 * 16) * 16 == tokens  # whole blocks
        assert found["max_concurrency"] == round(tokens / 4096, 2)
        assert found["tokens_each"] == each and found["sequences"] == {"1500": real}
    said = {one["id"]: one for one in failed["findings"]}
    assert said["more_sequences_than_cache"]["text"] == (
        "The KV cache (6.7 GiB) holds 14,592 tokens: 9 requests of 1,500 tokens at the same time, not 128; or 112 "
        "tokens for each of 128. Those that run beyond that are preempted: vLLM throws their cache away and "
        "computes it again."
    )
    assert said["more_sequences_than_cache"]["cure"].startswith("max_num_seqs: 9; or kv_cache_dtype: fp8")
    assert said["cache_shared"]["text"].endswith("128 sequences of 4,096 would take 240.0 GiB.")
    step = "Steps of 8,192 tokens for 128 sequences take about 1.4 GiB, as much as 3,"
    assert said["step_costs_cache"]["text"].startswith(step)


def test_the_article_with_sequences_longer_than_the_model(tmp_path: Path) -> None:
    found = planned(tmp_path, DEEPSEEK_7B, "--card", "24GB", "--max-model-len", "8192")
    error = found["cards"][0]["findings"][0]
    assert not found["starts"] and error["severity"] == "error" and "vLLM refuses to start." in error["text"]
    assert error["id"] == "longer_than_the_model" and error["cure"] == "At most: max_model_len: 4096."


# Architectures


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    # Sizes of the published safetensors files, or parameters × 2 bytes.
    [("Meta-Llama-3-8B", 16.06), ("Qwen2.5-7B", 15.23), ("Qwen2.5-7B-AWQ", 5.57), ("Qwen3-8B", 16.38),
     ("Mixtral-8x7B", 93.41), ("DeepSeek-V2-Lite", 31.41), ("DeepSeek-V3", 671.0), ("gpt-oss-20b", 13.76),
     ("Mistral-7B-v0.1", 14.48), ("deepseek-llm-7b", 13.82),
     ("Qwen3-Next-80B", 159.4), ("gemma-3-27b", 54.02), ("SmolLM2-135M", 0.269)],
)  # fmt: skip
def test_weights_by_config_alone(name: str, gigabytes: float) -> None:
    assert of_config(read(ALL[name]), 2).total == pytest.approx(gigabytes * 1e9, rel=0.005)


def test_layers_share_of_windows() -> None:
    def windows(name: str) -> list[int]:
        return [layer.window for layer in read(ALL[name]).layers]

    assert windows("gpt-oss-20b") == [128, 0] * 12
    assert windows("gemma-3-4b") == ([1024] * 5 + [0]) * 5 + [1024] * 4
    assert windows("Mistral-7B-v0.1") == [4096] * 32
    assert set(windows("Qwen2.5-7B")) == {0}  # it has a window in its file, and says not to use it


def test_a_state_beside_attention_makes_blocks_large() -> None:
    """Published start of Qwen3.5-27B with an fp8 cache: "Setting attention block size to 1568 tokens"."""
    config = {
        **ALL["Qwen3-Next-80B"], "num_key_value_heads": 4, "linear_num_value_heads": 48, "mamba_ssm_dtype": "float32",
    }  # fmt: skip
    model = read(config)
    assert block_size(model, resolved(Settings(kv_cache_dtype="fp8"), model, RTX_4090)) == 1568


def test_gpt_oss_without_layer_types_is_the_same() -> None:
    silent = {key: value for key, value in GPT_OSS_20B.items() if key != "layer_types"}
    assert read(silent).layers == read(GPT_OSS_20B).layers


@pytest.mark.parametrize(
    ("config", "words"),
    [({"mamba_d_state": 16}, "Mamba"), ({"index_topk": 2048}, "index cache"), ({"num_hidden_layers": None}, "num_hid"),
     ({"layer_types": ["linear_attention"] * 32}, "linear attention")],
)  # fmt: skip
def test_what_cannot_be_calculated_says_so(config: Config, words: str) -> None:
    with pytest.raises(TuningError, match=words) as caught:
        read({**LLAMA3_8B, **config})
    assert caught.value.hint


@given(layers=st.integers(1, 200), count=st.integers(1, 16))
def test_stages_have_every_layer_once(layers: int, count: int) -> None:
    parts = stages(layers, min(count, layers))
    assert [layer for part in parts for layer in part] == list(range(layers))


JUNK = st.sampled_from([None, True, -1, 0, 1, 3.5, "many", [], [1], {}, {"a": None}, 10**30])


@given(st.sampled_from(sorted(ALL)), st.data(), JUNK)
def test_a_strange_config_ends_with_a_hint(name: str, data: st.DataObject, junk: object) -> None:
    config = ALL[name]
    config = {**config, data.draw(st.sampled_from(sorted(config))): junk}
    try:
        model = read(config)
        budget(model, of_config(model, 2), Settings(), RTX_4090)
    except TuningError as error:
        assert error.hint


# Settings


def test_settings_of_an_engine() -> None:
    engine = Engine.model_validate(
        {"image": "vllm/vllm-openai:v0.32.0", "profile": "rag", "kv_cache_dtype": "fp8", "tensor_parallel_size": 2,
         "extra_args": ["--block-size", "32", "--enforce-eager"]}
    )  # fmt: skip
    found = of_engine(engine)
    assert (found.max_num_batched_tokens, found.block_size, found.enforce_eager) == (4096, 32, True)
    model = read(LLAMA3_8B)
    whole = layout(model, resolved(Settings(), model, RTX_4090)).bytes_per_token
    assert layout(model, resolved(found, model, RTX_4090)).bytes_per_token == whole // 4  # two GPUs, one byte


def test_choices_of_vllm_hang_on_the_card() -> None:
    model = read(LLAMA3_8B)

    def steps(card: str) -> tuple[int, int]:
        chosen = resolved(Settings(), model, find(card)[0])
        return chosen.max_num_batched_tokens, chosen.max_num_seqs

    assert [steps(card) for card in ("l4", "a100", "h100", "180GiB")] == [
        (2048, 256), (2048, 256), (8192, 1024), (16384, 1024)
    ]  # fmt: skip


def test_estimates_meet_published_starts() -> None:
    model = read(LLAMA3_8B)
    chosen = resolved(Settings(max_num_batched_tokens=8192, max_num_seqs=256), model, find("h100")[0])
    assert activation_peak(model, chosen) / GIB == pytest.approx(1.26, rel=0.1)
    assert graph_sizes(chosen) == (51, 35) and graph_memory(chosen) / GIB == pytest.approx(0.73, rel=0.05)


@given(st.sampled_from(sorted(ALL)), st.integers(1, 64), st.integers(64, 16_384), st.integers(1, 1024))
def test_what_fits_fits(name: str, gib: int, length: int, sequences: int) -> None:
    """The answers agree with each other, whatever is asked."""
    model = read(ALL[name])
    settings = Settings(max_model_len=length, max_num_seqs=sequences, kv_cache_memory=gib * GIB // 8)
    found = budget(model, of_config(model, 2), settings, CARDS[-1])
    longest, kv = found.longest, found.layout
    assert longest == 0 or kv.fits(found.kv_memory, longest)
    assert longest == length or not kv.fits(found.kv_memory, longest + 1)
    each = found.tokens_each
    assert each == 0 or found.sequences(each) >= sequences
    assert each == length or found.sequences(each + 1) < sequences


# Files


def safetensors(file: Path, tensors: dict[str, tuple[str, int]]) -> None:
    header, place = {}, 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)


def test_weights_of_files(tmp_path: Path) -> None:
    """By name: what is loaded and where it lies; two shards, an index, a head that is the embedding again."""
    model = read({**SMOLLM2, "num_hidden_layers": 2})
    first = {"model.embed_tokens.weight": ("BF16", 1000), "model.layers.0.mlp.up_proj.weight": ("BF16", 300)}
    second = {
        "model.layers.1.mlp.up_proj.weight": ("F32", 600), "model.norm.weight": ("BF16", 20),
        "lm_head.weight": ("BF16", 1000), "model.layers.2.eh_proj.weight": ("BF16", 5000),
        "mtp.layers.0.mlp.up_proj.weight": ("BF16", 70),
    }  # fmt: skip
    for number, part in enumerate((first, second), 1):
        safetensors(tmp_path / f"model-0000{number}-of-00002.safetensors", part)
    index = {
        name: f"model-0000{number}-of-00002.safetensors" for number, part in ((1, first), (2, second)) for name in part
    }
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 7920}, "weight_map": index})
    )
    found = read_weights(tmp_path, model, 2, None)
    assert (found.embedding, found.layers, found.head, found.exact) == (1000, (300, 300), 20, True)
    assert found.per_gpu(1, 2) == 1300
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    assert read_weights(tmp_path, model, 2, None).total == 7920  # the index alone


def test_a_pointer_in_place_of_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    config_file(tmp_path, SMOLLM2)
    result = run(tmp_path)
    assert result.exit_code == 1 and "Git LFS" in result.stderr


# The command


def test_without_config_json(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.exit_code == 1 and "config.json" in result.stderr and "--config FILE" in result.stderr
    result = run("no-such-model")
    assert result.exit_code == 1 and "--config FILE" in result.stderr
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text((REPOSITORY / "fleet.yaml").read_text())
    result = CliRunner().invoke(main, ["--fleet", str(fleet), "plan", "smollm2"])
    assert result.exit_code == 1 and "signalbox prepare" in result.stderr
    result = run("it", "--config", config_file(tmp_path, LLAMA3_8B), "--card", "24GB0")
    assert result.exit_code == 1 and "nvidia-smi" in result.stderr
    result = run("it", "--config", config_file(tmp_path, LLAMA3_8B), "--kv-cache-dtype", "nvfp4")
    assert result.exit_code == 1 and "kv_cache_dtype: nvfp4" in result.stderr


def test_what_a_person_sees(tmp_path: Path) -> None:
    result = run("llama", "--config", config_file(tmp_path, LLAMA3_8B), "--card", "24GB", "--length", "2000")
    assert result.exit_code == 0
    for text in ("131,072 bytes per token", "L4", "RTX 4090", "of 2,000", "≈ 15.0", "≈ is an estimate"):
        assert text in result.stdout
    assert max(map(len, result.stdout.splitlines()[:9])) <= 80


def test_what_does_not_fit_names_the_way_out(tmp_path: Path) -> None:
    large = planned(tmp_path, ALL["Mixtral-8x7B"], "--card", "h100")
    assert not large["starts"] and "tensor_parallel_size: 2" in large["cards"][0]["findings"][0]["cure"]
    long = planned(tmp_path, ALL["Qwen3-8B"], "--card", "l4")["cards"][0]
    assert not long["starts"] and f"max_model_len: {long['longest']}" in long["findings"][0]["cure"]
    fits = planned(tmp_path, ALL["Qwen3-8B"], "--card", "l4", "--max-model-len", str(long["longest"]))
    assert fits["starts"]


def test_a_cache_larger_than_the_card(tmp_path: Path) -> None:
    config_file(tmp_path, LLAMA3_8B)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "hosts: {a: {address: 10.0.0.2, docker: 'ssh://ops@10.0.0.2'}}\n"
        "models:\n  m:\n    source: .\n    engine: {image: 'vllm/vllm-openai:v0.32.0', kv_cache_memory: 30GiB}\n"
        "    backends: [{host: a, port: 8000}]\n"
    )
    result = CliRunner().invoke(main, ["--fleet", str(fleet), "plan", "m", "--json", "--card", "l40s", "--card", "l4"])
    large, small = json.loads(result.stdout)["cards"]
    assert large["kv_tokens"] == 30 * GIB // 131_072 and "kv_memory" not in large["estimates"]
    assert large["starts"] is False and "more than the card has" in large["findings"][0]["text"]
    assert small["starts"] is False


def test_the_hosts_own_cards(tmp_path: Path) -> None:
    config_file(tmp_path, LLAMA3_8B)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "hosts:\n  a: {address: 10.0.0.2, docker: 'ssh://ops@10.0.0.2', gpus: 1, gpu_memory: 44GiB}\n"
        "models:\n  m:\n    source: .\n    engine: {image: 'vllm/vllm-openai:v0.32.0', max_num_seqs: 8}\n"
        "    backends: [{host: a, gpus: [0], port: 8000}]\n"
    )
    result = CliRunner().invoke(main, ["--fleet", str(fleet), "plan", "m", "--json"])
    assert result.exit_code == 0, result.output
    (card,) = json.loads(result.stdout)["cards"]
    assert (card["card"], card["memory"], card["max_num_seqs"]) == ("a", 44 * GIB, 8)
