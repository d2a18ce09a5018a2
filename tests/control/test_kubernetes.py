"""Manifests: valid by the published schemas, consistent with each other, and without a secret in them."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from control.errors import RenderError
from control.kubernetes.engines import PORT
from control.kubernetes.shapes import Target, gibibytes, name_of
from control.kubernetes.target import MARK, Bundle, render, write
from control.paths import REPOSITORY
from tests.control.kubernetes_fleet import FLEET, SECRETS, written

GOLDEN = Path(__file__).parent / "golden" / "kubernetes"
TARGET = Target(edge_image="registry.test/signalbox:0.1.0", engine_image="registry.test/vllm-openai:v0.32.0")
#: The oldest that clusters still run, and the newest that is published.
VERSIONS = ("1.27", "1.31", "1.37")
Document = dict[str, Any]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return render(written(tmp_path_factory.mktemp("fleet"), FLEET), TARGET)


@pytest.fixture(scope="module")
def found(bundle: Bundle) -> list[Document]:
    return list(yaml.safe_load_all(bundle.text()))


def only(found: list[Document], kind: str, name: str) -> Document:
    (one,) = [document for document in found if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    return one


def pods(found: list[Document]) -> Iterator[tuple[str, Document]]:
    for document in found:
        if document["kind"] == "Deployment":
            yield document["metadata"]["name"], document["spec"]["template"]


def containers(pod: Document) -> list[Document]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid(found: list[Document], version: str) -> None:
    assert len(found) > 12
    for document in found:
        assert kubernetes_validate.validate(document, version, strict=True) == version, document["metadata"]["name"]


def test_a_wrong_manifest_would_be_found(found: list[Document]) -> None:
    broken = copy.deepcopy(only(found, "Deployment", "signalbox-edge"))
    broken["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_golden(bundle: Bundle) -> None:
    """After a change that is meant: UPDATE_GOLDEN=1 pytest, then read the diff of golden/kubernetes/."""
    assert {path.name for path in GOLDEN.glob("*.yaml")} == set(bundle.manifests) or os.environ.get("UPDATE_GOLDEN")
    for name, text in bundle.manifests.items():
        # nginx.conf has golden files of its own, and changes with everything.
        text = re.sub(r"  nginx\.conf: \|\n(    .*\n|\n)+", "  nginx.conf: (left out)\n", text)
        text = re.sub(r"signalbox/config: \w+", "signalbox/config: (digest)", text)
        if os.environ.get("UPDATE_GOLDEN"):
            GOLDEN.mkdir(exist_ok=True)
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text(), f"{name} differs"


def test_the_same_fleet_gives_the_same_bytes(bundle: Bundle, tmp_path: Path) -> None:
    again = render(written(tmp_path, FLEET), TARGET)
    assert again.manifests == bundle.manifests


def test_no_secret_is_inlined(bundle: Bundle) -> None:
    texts = {**bundle.manifests, "secrets.sh": bundle.script}
    for name, text in texts.items():
        assert not [secret for secret in SECRETS.values() if secret in text], name
        assert "alices-secret" not in text and "alice" not in text, name
        assert "PRIVATE KEY" not in text, name


def test_every_reference_leads_somewhere(bundle: Bundle, found: list[Document]) -> None:
    """Selectors, volumes, ports, and the Secrets that the script makes."""
    labels = [pod["metadata"]["labels"] for _, pod in pods(found)]
    for document in found:
        spec = document.get("spec", {})
        selectors = [spec.get("podSelector"), spec.get("selector") and {"matchLabels": spec["selector"]}]
        for selector in [entry["matchLabels"] for entry in selectors if entry and document["kind"] != "Deployment"]:
            wanted = selector.get("matchLabels", selector)
            matching = [pod for pod in labels if wanted.items() <= pod.items()]
            assert len(matching) == 1, (document["metadata"]["name"], wanted)
    for name, pod in pods(found):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounted = {entry["name"] for one in containers(pod) for entry in one["volumeMounts"]}
        assert mounted == set(volumes), name
        for volume in volumes.values():
            if "secret" in volume:
                assert f" {volume['secret']['secretName']} " in bundle.script, name
        for one in containers(pod):
            for variable in one.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference:
                    assert re.search(rf"(take \S+ |\$folder/){re.escape(reference['key'])}\b", bundle.script), reference
            names = [variable["name"] for variable in one.get("env", [])]
            assert len(names) == len(set(names)), "a variable stands there twice"


def test_pods_have_no_rights(found: list[Document]) -> None:
    """What the cluster's own rule ``restricted`` asks for, which the namespace enforces."""
    namespace = only(found, "Namespace", "signalbox")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, pod in pods(found):
        rights = pod["spec"]["securityContext"]
        assert rights["runAsNonRoot"] and rights["runAsUser"] > 0, name
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["enableServiceLinks"] is False, "a Service named vllm would break vLLM with VLLM_PORT"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod["spec"])
        assert {kind for volume in pod["spec"]["volumes"] for kind in volume} <= {
            "name", "configMap", "emptyDir", "secret", "persistentVolumeClaim",
        }  # fmt: skip
        for one in containers(pod):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip


def test_an_engine_gets_its_arguments_time_and_memory(found: list[Document]) -> None:
    name = name_of("engine", "Org-Big.Model-1")
    pod = only(found, "Deployment", name)["spec"]["template"]
    (engine,) = pod["spec"]["containers"]
    assert engine["command"][:3] == ["vllm", "serve", "/models/big-model"]
    assert engine["command"][3:6] == ["--served-model-name", "Org/Big.Model", "big"]
    assert "--max-num-seqs" in engine["command"] and str(PORT) in engine["command"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > 45
    startup = engine["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 20 * 60
    shm = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "shm"]
    assert shm == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]
    environment = {entry["name"]: entry.get("value") for entry in engine["env"]}
    assert environment["OMP_NUM_THREADS"] == "1" and environment["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "75"
    assert environment["HF_TOKEN"] is None and environment["VLLM_API_KEY"] is None, "by reference"
    assert environment["ODD"] == "$$(HOME) costs $$5", "Kubernetes puts nothing into it"
    service = only(found, "Service", name)["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True


def test_an_engine_with_gpus(found: list[Document]) -> None:
    pod = only(found, "Deployment", "engine-gpu-1")["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    assert engine["image"] == "vllm/vllm-openai:v0.30.1"
    assert engine["resources"] == {"limits": {"nvidia.com/gpu": 2, "cpu": "8", "memory": "64Gi"}}
    assert engine["command"][2] == "/models/llama-70b" and "--tensor-parallel-size" in engine["command"]
    assert pod["volumes"][0]["emptyDir"] == {"sizeLimit": "16Gi", "medium": "Memory"}
    reference = {"name": "signalbox-files", "key": "license"}
    assert {"name": "LICENSE", "valueFrom": {"secretKeyRef": reference}} in engine["env"]


def test_a_model_of_a_hub_needs_no_claim(found: list[Document]) -> None:
    pod = only(found, "Deployment", "engine-hub-1")["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    assert engine["command"][2] == "org/tiny-model" and "models" not in {volume["name"] for volume in pod["volumes"]}
    names = {entry["name"] for entry in engine["env"]}
    assert "HF_TOKEN" in names and not {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} & names


def test_the_edge_follows_engines_by_name(found: list[Document]) -> None:
    fleet = json.loads(only(found, "ConfigMap", "signalbox-edge")["data"]["fleet.json"])
    engine = fleet["backends"]["Org-Big.Model-1"]
    assert engine["host"] == f"{name_of('engine', 'Org-Big.Model-1')}.signalbox.svc.cluster.local"
    assert (engine["port"], engine["scheme"], engine["limit"]) == (8000, "http", 34)
    assert engine["key_file"] == "/etc/signalbox/files/gpu.key"
    rented = fleet["backends"]["rented-1"]
    assert rented["host"] == "gpu.example.com" and rented["key_file"] == "/etc/signalbox/files/2-gpu.key"
    assert fleet["backends"]["rented-2"]["host"] == "10.0.0.9"
    services = {document["metadata"]["name"] for document in found if document["kind"] == "Service"}
    for backend in fleet["backends"].values():
        name, _, rest = backend["host"].partition(".")
        assert name in services or not rest.endswith("cluster.local")


def test_the_edges_settings_are_those_of_a_pod(found: list[Document]) -> None:
    conf = only(found, "ConfigMap", "signalbox-edge")["data"]["nginx.conf"]
    assert "listen 0.0.0.0:8443 ssl" in conf and "listen 127.0.0.1:9089" in conf
    assert 'ssl_certificate "/etc/signalbox/tls/0/tls.crt"' in conf
    assert 'ssl_certificate_key "/etc/signalbox/tls/1/tls.key"' in conf
    assert "worker_processes 2;" in conf and "/opt/signalbox/lua/?.lua" in conf
    assert 'host = "redis.signalbox.svc.cluster.local"' in conf and "database = 3" in conf
    assert 'password_file = "/etc/signalbox/files/redis.pw"' in conf
    assert only(found, "Service", "signalbox")["spec"]["ports"] == [
        {"name": "https", "port": 443, "targetPort": "https"}
    ]
    edge = only(found, "Deployment", "signalbox-edge")["spec"]
    assert edge["replicas"] == 2 and edge["template"]["spec"]["terminationGracePeriodSeconds"] > 120


def test_only_edges_reach_engines_and_redis(found: list[Document]) -> None:
    fences = [document for document in found if document["kind"] == "NetworkPolicy"]
    assert len(fences) == 6, "five engines and Redis"
    for fence in fences:
        (rule,) = fence["spec"]["ingress"]
        (origin,) = rule["from"]
        assert origin["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "edge"
        assert len(rule["ports"]) == 1


def test_one_edge_without_redis_and_none_where_one_is_there(tmp_path: Path) -> None:
    fleet = copy.deepcopy(FLEET)
    for state, replicas, redis in (
        ("memory", 1, False),
        ("redis://cache.example.com:6379", 2, False),
        ("redis://r", 2, True),
    ):
        fleet["edge"]["state"] = state
        bundle = render(written(tmp_path, fleet), TARGET)
        found = list(yaml.safe_load_all(bundle.text()))
        assert only(found, "Deployment", "signalbox-edge")["spec"]["replicas"] == replicas
        assert ("redis.yaml" in bundle.manifests) is redis
        assert any(document["kind"] == "PodDisruptionBudget" for document in found) is (replicas > 1)
        conf = only(found, "ConfigMap", "signalbox-edge")["data"]["nginx.conf"]
        assert ("cache.example.com" in conf) is (state.startswith("redis://cache"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("edge", "keys"), None, "no API key would be asked for"),
        (("models", "rented", "backends"), [{"url": "http://127.0.0.1:8000"}], "which in a pod is the pod itself"),
        (("models", "Org/Big.Model", "source"), {"package": "p==1", "gguf": "x.gguf"}, "which no image unpacks"),
        (("edge", "state"), "rediss://redis", "speaks no TLS"),
    ],
)
def test_what_a_cluster_cannot_have_is_told(tmp_path: Path, path: tuple[str, ...], value: Any, message: str) -> None:
    fleet = copy.deepcopy(FLEET)
    at = fleet
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    if value is None:
        del at[path[-1]]
        fleet["edge"]["listen"] = "127.0.0.1:8080"
    with pytest.raises(RenderError, match=message) as caught:
        render(written(tmp_path, fleet), TARGET)
    assert caught.value.hint


def test_an_engine_without_an_image_is_told(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="names no image") as caught:
        render(written(tmp_path, FLEET), Target())
    assert "--engine-image" in caught.value.hint


@pytest.mark.parametrize(
    ("identity", "name"),
    [("m-1", "engine-m-1"), ("A.b", "engine-a-b-4ff54a77"), ("a.b", "engine-a-b-2e7336dc"), ("-", "engine-3973e022")],
)
def test_names_are_dns_labels(identity: str, name: str) -> None:
    assert name_of("engine", identity) == name


def test_names_never_meet() -> None:
    identities = ["a", "A", "a.", "a-", "a_", "x" * 64, "x" * 63 + "y", "a-.-b", "a---b"]
    names = [name_of("engine", identity) for identity in identities]
    assert len(set(names)) == len(identities)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names), names


def test_sizes() -> None:
    assert [gibibytes(size) for size in (8 * 1024**3, 1536 * 1024**2, 1000)] == ["8Gi", "1536Mi", "1000"]


def test_a_folder_holds_what_the_fleet_has_now(bundle: Bundle, tmp_path: Path) -> None:
    foreign = tmp_path / "ingress.yaml"
    foreign.write_text("kind: Ingress\n")
    (tmp_path / "engine-gone.yaml").write_text(MARK)
    said = write(bundle, tmp_path)
    assert any("engine-gone.yaml: removed" in line for line in said) and not (tmp_path / "engine-gone.yaml").exists()
    assert foreign.exists() and {path.name for path in tmp_path.glob("*.yaml")} == {*bundle.manifests, foreign.name}
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / "keys.json").read_text())["keys"], "hashes of the keys"
    assert write(bundle, tmp_path) == []


def test_the_script_makes_every_secret(tmp_path: Path) -> None:
    """The real script; only kubectl is a stand-in, which keeps what it is given."""
    loaded = written(tmp_path, FLEET)
    out, made, tools = tmp_path / "out", tmp_path / "made", tmp_path / "tools"
    write(render(loaded, TARGET), out)
    made.mkdir()
    tools.mkdir()
    (tools / "kubectl").write_text(
        "#!/bin/sh\n"
        'case "$*" in *" get "*) exit 1;; "get namespace"*|"create namespace"*) exit 0;; apply*) exit 0;; esac\n'
        f'shift 4; kind=$1 name=$2; folder={made}/$name; mkdir -p "$folder"; shift 2\n'
        'for word; do case "$word" in\n'
        '    --from-file=*=*) word=${word#--from-file=}; cp "${word#*=}" "$folder/${word%%=*}";;\n'
        '    --from-file=*) cp "${word#--from-file=}"/* "$folder";;\n'
        '    --cert=*) cp "${word#--cert=}" "$folder/tls.crt";; --key=*) cp "${word#--key=}" "$folder/tls.key";;\n'
        "esac; done\n"
    )
    (tools / "kubectl").chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HF_TOKEN": SECRETS["variable"]}
    script = ["/bin/sh", str(out / "secrets.sh")]
    lacking = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert lacking.returncode != 0 and "SECOND_KEY: set this variable first" in lacking.stderr
    environment["SECOND_KEY"] = "second"
    done = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = {str(path.relative_to(made)): path.read_text() for path in made.rglob("*") if path.is_file()}
    assert re.fullmatch(r"[0-9a-f]{64}\n", files.pop("signalbox-admin/admin.token"))
    assert files.pop("signalbox-keys/keys.json") == (out / "keys.json").read_text()
    assert "PRIVATE KEY" in files.pop("signalbox-tls-0/tls.key") and "PRIVATE KEY" in files.pop(
        "signalbox-tls-1/tls.key"
    )
    assert "CERTIFICATE" in files.pop("signalbox-tls-0/tls.crt") and "CERTIFICATE" in files.pop(
        "signalbox-tls-1/tls.crt"
    )
    assert "CERTIFICATE" in files.pop("signalbox-files/edge.pem")
    assert files == {
        "signalbox-files/redis.pw": "redis-hush",
        "signalbox-files/gpu.key": "gpu-hush",
        "signalbox-files/2-gpu.key": "other-hush",
        "signalbox-files/license": "license-hush",
        "signalbox-variables/HF_TOKEN": "token-hush",
        "signalbox-variables/SECOND_KEY": "second",
    }


def test_the_command(tmp_path: Path) -> None:
    written(tmp_path, FLEET)
    command = [sys.executable, "-m", "control", "-f", str(tmp_path / "fleet.yaml"), "render", "--target", "kubernetes"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True)

    lacking = run()
    assert lacking.returncode == 1 and "--engine-image" in lacking.stderr
    bad = run("--namespace", "Not_A_Label")
    assert bad.returncode == 2 and "Not_A_Label" in bad.stderr
    printed = run("--engine-image", "vllm:v0.32.0", "--namespace", "inference")
    assert printed.returncode == 0, printed.stderr
    documents = list(yaml.safe_load_all(printed.stdout))
    assert {document["metadata"].get("namespace", "inference") for document in documents} == {"inference"}
    into = run("--engine-image", "vllm:v0.32.0", "--out", str(tmp_path / "out"))
    assert into.returncode == 0 and "kubectl apply" in into.stdout and (tmp_path / "out" / "edge.yaml").exists()
    assert not (tmp_path / ".signalbox").exists(), "nothing of this machine's edge is touched"
