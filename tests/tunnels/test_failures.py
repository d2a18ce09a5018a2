"""What OpenSSH 9.2 says when it ends, captured or from its source, and what we make of it. See also test_keeper."""

from __future__ import annotations

import re

import pytest

from control.tunnels.arguments import Target, Tunnel
from control.tunnels.failures import explain

BOX = Tunnel("m-1", "box", Target("box.lan", "root", 2222), ("127.0.0.1", 8000), ("127.0.0.1", 8000))


@pytest.mark.parametrize(
    ("said", "message", "cure", "by_hand"),
    [
        ("Connection timed out during banner exchange\nConnection to box.lan port 2222 timed out",
         "box.lan port 2222 cannot be reached (timed out)", "firewall", False),
        ("Timeout, server box.lan not responding.", "root@box.lan:2222 has not answered for 15 s", "network", False),
        ("ssh: connect to host box.lan port 2222: Connection timed out", "box.lan port 2222 cannot be reached "
         "(connection timed out)", "firewall", False),
        ("ssh: connect to host box.lan port 2222: No route to host", "(no route to host)", "firewall", False),
        ("ssh: Could not resolve hostname box.lan: Name or service not known", "there is no machine called "
         "box.lan: name or service not known", "hosts in fleet.yaml", False),
        ("Connection to box.lan closed by remote host.", "root@box.lan:2222 closed the connection", "MaxStartups",
         False),
        ("kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.5 port 2222",
         "root@box.lan:2222 closed the connection", "MaxStartups", False),
        ("client_loop: send disconnect: Broken pipe", "closed the connection", "MaxStartups", False),
        ("Received disconnect from 10.0.0.5 port 2222:2: Too many authentication failures\n"
         "Disconnected from 10.0.0.5 port 2222", "ssh offered root@box.lan:2222 too many keys", "IdentitiesOnly", True),
        ("@ WARNING: UNPROTECTED PRIVATE KEY FILE! @\nLoad key \"/k/id\": bad permissions\n"
         "root@box.lan: Permission denied (publickey).", "does not use the key /k/id", "chmod 600 /k/id", True),
        ("Warning: Permanently added '[box.lan]:2222' (ED25519) to the list of known hosts.\n"
         "root@box.lan: Permission denied (publickey,password).", "(it takes: publickey,password)", "ssh-copy-id",
         True),
        ("bind [127.0.0.1]:8000: Address already in use\n"
         "channel_setup_fwd_listener_tcpip: cannot listen to port: 8000\n"
         "Could not request local forwarding.", "127.0.0.1:8000 is in use", "Give m-1 another port", False),
        ("bind [127.0.0.1]:80: Permission denied\nCould not request local forwarding.",
         "may not listen on 127.0.0.1:8000", "Give m-1 another port", True),
        ("/home/u/.ssh/config: line 3: Bad configuration option: nosuch\n/home/u/.ssh/config: terminating, 1 bad "
         "configuration options", "Bad configuration option: nosuch", "Correct that file", True),
        ("Bad owner or permissions on /home/u/.ssh/config", "Bad owner or permissions on /home/u/.ssh/config",
         "Correct that file", True),
        ("channel 3: open failed: connect failed: Connection refused\nsomething new.", "ended: something new", "",
         False),
        ("", "ssh to root@box.lan:2222 ended: it was killed", "", False),
    ],
)  # fmt: skip
def test_one_sentence_and_the_cure(said: str, message: str, cure: str, by_hand: bool) -> None:
    failure = explain(said.splitlines(), BOX, "it was killed")
    assert message in failure.message and cure in failure.cure and failure.by_hand == by_hand
    assert (
        "\n" not in str(failure)
        and not re.search(r"(?<!\.)\.\.(?!\.)", str(failure))
        and not str(failure).endswith(" ")
    )
