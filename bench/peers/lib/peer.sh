# Sourced by every peer's install and run: where the peer's build lives, and the
# stamp that makes a second install quick.
#
# Nothing here needs HOME or the working directory: run may be another user's
# process, started from a copy of this tree.

peer_dir=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)
peer=${peer_dir##*/}
build_dir=${PEERS_BUILD_DIR:+$PEERS_BUILD_DIR/$peer}
build_dir=${build_dir:-$peer_dir/build}

skip() {
    echo "skipped: $*" >&2
    exit 3
}

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || skip "$peer needs $tool, which is not installed"
    done
}

# The build belongs to exactly these sources.
stamp() {
    (cd "$peer_dir" && sha256sum "$@") | sha256sum
}

is_built() {
    [ "$(cat "$build_dir/.stamp" 2>/dev/null)" = "$(stamp "$@")" ]
}

# Readable by whoever runs the peer, whatever the installer's umask was.
mark_built() {
    chmod -R a+rX "$build_dir"
    stamp "$@" >"$build_dir/.stamp"
    chmod a+r "$build_dir/.stamp"
}

need_build() {
    [ -e "$build_dir/.stamp" ] || {
        echo "$peer: nothing built in $build_dir: run $peer_dir/install first" >&2
        exit 1
    }
}

# The system's Python first: one in somebody's home may be closed to the user who
# runs the peer.
usable_python() {
    local python
    for python in /usr/bin/python3 "$(command -v python3)"; do
        [ -x "$python" ] && "$python" -c 'import venv, ensurepip' 2>/dev/null && echo "$python" && return
    done
    skip "$peer needs python3 with venv"
}

# The package clients keep caches at home, which a service's user has none of.
home_for_install() {
    [ -w "${HOME:-/nowhere}" ] && return
    HOME=$(mktemp -d)
    export HOME
    trap 'chmod -R u+w "$HOME"; rm -rf "$HOME"' EXIT
}
