#!/bin/sh
# Installs what this machine lacks: system packages (Debian, Ubuntu), then Signalbox's Python packages in .venv.
#
# usage: setup.sh run|test-fast|test     for running; for the tests without a browser; for all tests
# PYTHON chooses the interpreter (3.11 to 3.13). Run it again whenever you like: it only does what is missing.
set -eu
cd "$(dirname "$0")/.."
purpose=${1:-run}
policy=/usr/sbin/policy-rc.d
mark='# made by signalbox'
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1
# dash runs no EXIT trap when a signal ends it; this way it does.
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say() { printf '%s\n' "$*" >&2; }
fail() { say "Error: $1"; shift; for line; do say "$line"; done; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
installed() { dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

# --- Python ---

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
# Debian and Ubuntu keep the venv module's other half in a package of its own.
has_venv() { "$1" -c 'import venv, ensurepip' 2>/dev/null; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        have "$PYTHON" || fail "PYTHON=$PYTHON is not there." "Give a Python from 3.11 to 3.13."
        fits "$PYTHON" || fail "$PYTHON is $("$PYTHON" -V 2>&1); Signalbox needs Python 3.11 to 3.13." \
            "Choose another one: make setup PYTHON=python3.12"
        python=$PYTHON
        return
    fi
    # One with venv first: it needs no package.
    for test in has_venv true; do
        for python in python3 python3.13 python3.12 python3.11; do
            if have "$python" && fits "$python" && "$test" "$python"; then return; fi
        done
    done
    python=
}

# --- System packages ---

wanted_packages() {
    if [ -z "$python" ]; then
        case $(apt-cache policy python3 2>/dev/null | awk '/Candidate:/ {print $2}') in
            3.11.* | 3.12.* | 3.13.*) echo python3 python3-venv ;;
            *) echo python3.11 python3.11-venv ;;
        esac
    elif ! has_venv "$python"; then
        "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
    fi
    if [ -z "${EDGE_NGINX:-}" ] && ! have openresty; then
        echo nginx-light libnginx-mod-http-lua lua-resty-core lua-cjson lua-nginx-dns
    fi
    echo libnuma1 # vLLM on CPU loads it
    have curl || echo curl
    case $purpose in
        test-fast) echo lua-check lua-busted "$(luajit_package)" wrk redis-server iproute2 openssh-server ;;
        test)
            echo lua-check lua-busted "$(luajit_package)" wrk redis-server iproute2 openssh-server libatomic1 # the last for Playwright's driver
            have chromium || echo chromium
            have dockerd || echo docker.io
            ;;
    esac
}

# The LuaJIT that the nginx module links: a fork with a name of its own, until Debian 13 made it the only one. The two
# cannot be installed together.
luajit_package() {
    case $(apt-cache policy luajit2 2>/dev/null | awk '/Candidate:/ {print $2}')/$(apt-cache policy luajit 2>/dev/null | awk '/Candidate:/ {print $2}') in
        /?* | "(none)"/?*) echo luajit ;;
        *) echo luajit2 ;;
    esac
}

missing_packages() {
    for package in $(wanted_packages); do
        case $package in
            # Any nginx of the distribution will do: the Lua module pulls what fits.
            nginx-light) installed nginx-light || installed nginx-core || installed nginx-full || installed nginx-extras || echo "$package" ;;
            *) installed "$package" || echo "$package" ;;
        esac
    done
}

# Fails with the exact command when packages are missing that this user cannot install.
install_packages() {
    if have dpkg-query && have apt-get; then
        remove_left_policy
        packages=$(missing_packages | sort -u | tr '\n' ' ')
        [ -n "$packages" ] || return 0
        command="apt-get install -y --no-install-recommends $packages"
        find_sudo ||
            fail "These packages are missing, and this user may not install them: $packages" \
                "As root: $command" "Then run the same command again."
        $sudo apt-get update -q || say "apt-get update failed; trying with the package lists that are there."
        packages=$(missing_packages | sort -u | tr '\n' ' ') # a fresh machine has no lists until now
        command="apt-get install -y --no-install-recommends $packages"
        say "Installing system packages: $packages"
        with_services_off
    else
        missing=
        [ -n "$python" ] || missing="$missing Python 3.11 to 3.13 (with venv);"
        [ -n "${EDGE_NGINX:-}" ] || have openresty || missing="$missing OpenResty (openresty on PATH, or its path in EDGE_NGINX);"
        have curl || missing="$missing curl;"
        if [ "$purpose" != run ]; then
            for tool in luacheck busted luajit wrk redis-server ssh ssh-keygen; do have "$tool" || missing="$missing $tool;"; done
            [ "$purpose" != test ] || have chromium || missing="$missing chromium;"
            [ "$purpose" != test ] || have dockerd || missing="$missing Docker Engine (dockerd);"
        fi
        [ -z "$missing" ] || fail "This is neither Debian nor Ubuntu, so please install yourself:$missing" \
            "Then run the same command again."
    fi
}

# Sets sudo to what becomes root; fails when nothing does.
find_sudo() {
    if [ "$(id -u)" = 0 ]; then sudo=
    elif have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then sudo=sudo
    else return 1; fi
}

# A run that was killed outright could not remove it; as long as it lies there, no package starts its service.
remove_left_policy() {
    grep -qsx "$mark" "$policy" || return 0
    if find_sudo; then $sudo rm -f "$policy"; else say "An earlier run left $policy. As root: rm $policy"; fi
}

# Debian starts what it installs: nginx would take port 80 at once and at every boot, redis-server its own. Ours runs as the
# user, elsewhere. What was there before is left as it is.
with_services_off() {
    services=
    installed nginx-common || services="$services nginx"
    case " $packages" in *" redis-server "*) services="$services redis-server" ;; esac
    case " $packages" in *" openssh-server "*) services="$services ssh.socket ssh" ;; esac
    case " $packages" in *" docker.io "*) services="$services docker.socket docker containerd" ;; esac
    if [ -z "$services" ] || [ -e "$policy" ]; then
        install_with_apt
        return
    fi
    trap '$sudo rm -f "$policy"' EXIT
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" | $sudo tee "$policy" >/dev/null
    $sudo chmod +x "$policy"
    install_with_apt
    $sudo rm -f "$policy"
    trap - EXIT
    if have systemctl; then
        for service in $services; do $sudo systemctl disable --quiet "$service" 2>/dev/null || true; done
    fi
}

install_with_apt() {
    # A list of words is meant:
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive $command ||
        fail "The packages could not be installed: $packages" "The lines above say why. By hand, as root: $command"
}

# --- Python packages ---

# $1: lock file. Done already when the stamp holds this lock, this pyproject.toml and this interpreter.
install_python() {
    is_done "$1" && return 0
    if [ -d .venv ] && ! [ "$("$python" -c "$version")" = "$(.venv/bin/python -c "$version" 2>/dev/null)" ]; then
        say "Making .venv anew for $("$python" -V 2>&1)"
        rm -rf .venv
    fi
    [ -x .venv/bin/pip ] || { say "Making .venv with $("$python" -V 2>&1)"; "$python" -m venv .venv; }
    say "Installing Python packages from $1"
    .venv/bin/pip install -q --require-hashes -r "$1" ||
        fail "The Python packages could not be installed." \
            "Can this machine reach a package index? pip reads PIP_INDEX_URL, PIP_FIND_LINKS and its own configuration." \
            "Then run the same command again."
    .venv/bin/pip install -q --no-deps --no-build-isolation -e .
    stamp "$1" >"$(stamp_file "$1")"
}
stamp_file() { echo ".venv/signalbox-$(basename "$1" .lock)"; }
stamp() { { cat "$1" pyproject.toml; "$python" -c 'import sys; print(sys.version, sys.base_prefix)'; } | cksum; }
is_done() { [ "$(cat "$(stamp_file "$1")" 2>/dev/null)" = "$(stamp "$1")" ]; }
version='import sys; print(sys.version_info[:3])'

find_python
install_packages
[ -n "$python" ] || find_python
[ -n "$python" ] || fail "There is no Python from 3.11 to 3.13." "Install one, or name it: make setup PYTHON=/path/to/python3.12"
case $purpose in
    # The development lock holds the same packages in the same versions, and more.
    run) is_done requirements/dev.lock || install_python requirements/run.lock ;;
    *) install_python requirements/dev.lock ;;
esac
