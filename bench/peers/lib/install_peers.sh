# Sourced after scripts/lib.sh by bench/run and bench/losses/run.

# Builds the named peers, and sets `peers` to the peers that can run here.
install_peers()
{
    local name status

    peers=
    export PEERS_BUILD_DIR=${PEERS_BUILD_DIR:-/var/tmp/redlock_pg-peers.$(id -u)}
    mkdir -p "$PEERS_BUILD_DIR"
    [ -O "$PEERS_BUILD_DIR" ] || die "$PEERS_BUILD_DIR belongs to somebody else"
    chmod 755 "$PEERS_BUILD_DIR"
    for name in "$@"; do
        status=0
        "$ROOT/bench/peers/$name/install" >"$PEERS_BUILD_DIR/$name.log" 2>&1 || status=$?
        case $status in
        0) peers+="$name " ;;
        3) echo "peer $name $(tail -n 1 "$PEERS_BUILD_DIR/$name.log")" ;;
        *)
            tail -n 20 "$PEERS_BUILD_DIR/$name.log" >&2
            echo "peer $name could not be built; see $PEERS_BUILD_DIR/$name.log"
            ;;
        esac
    done
}
