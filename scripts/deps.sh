#!/bin/bash
# scripts/deps.sh: install the packages for the build, the tests and the demo
#
#   scripts/deps.sh             for scripts/test.sh and scripts/demo.sh
#   scripts/deps.sh --lint      also for scripts/lint.sh
#   scripts/deps.sh --bench     also for bench/run
#   scripts/deps.sh --postgres  also for scripts/build_postgres.sh
#   scripts/deps.sh --chaos     also for test/chaos/run
#   scripts/deps.sh --fuzz      also for make fuzz and make branches
#   scripts/deps.sh --models    also for make model
#
# For Debian and Ubuntu, as root or as a user with sudo.  Installs missing packages
# only, and does not call apt if no package is missing.  Starts no service, enables
# none for the next boot, and creates no database cluster: a person who tries an
# extension did not ask for servers.
#
#   PG_CONFIG=/path/pg_config   use this PostgreSQL
#   PG_MAJOR=15                 use this major version of the distribution
#   REDIS_SERVER=valkey-server  use this in place of redis-server, which is the default
#                               unless only Valkey is there
set -eu

lint=
bench=
postgres=
chaos=
fuzz=
models=
for option in "$@"; do
    case $option in
    --lint) lint=1 ;;
    --bench) bench=1 ;;
    --postgres) postgres=1 ;;
    --chaos) chaos=1 ;;
    --fuzz) fuzz=1 ;;
    --models) models=1 ;;
    *)
        echo "usage: $0 [--lint] [--bench] [--postgres] [--chaos] [--fuzz] [--models]" >&2
        exit 2
        ;;
    esac
done

have() { command -v "$1" >/dev/null 2>&1; }

# ---- what is missing ----

packages=()
optional=()
need_server=

# bin directory of the PostgreSQL to use, empty when there is none
pg_bindir()
{
    if [ -n "${PG_CONFIG-}" ]; then
        "$PG_CONFIG" --bindir
    else
        for dir in /usr/lib/postgresql/${PG_MAJOR:-*}/bin; do
            if [ -x "$dir/postgres" ]; then
                echo "$dir"
            fi
        done | sort -V | tail -n 1
    fi
}

have_hiredis()
{
    have gcc && echo '#include <hiredis/hiredis.h>' | gcc -E - >/dev/null 2>&1
}

# The C library's headers are only recommended by gcc.
have gcc && echo '#include <stdlib.h>' | gcc -E - >/dev/null 2>&1 ||
    packages+=(gcc libc6-dev)
have make || packages+=(make)
have bzip2 || packages+=(bzip2) # PostgreSQL's source
have perl && have prove || packages+=(perl)
have_hiredis || packages+=(libhiredis-dev)
# With these packages TLS to the nodes is built, and tested.
[ -e /usr/include/openssl/ssl.h ] || optional+=(libssl-dev)
have openssl || optional+=(openssl)
redis=${REDIS_SERVER-}
[ -n "$redis" ] || have redis-server || ! have valkey-server || redis=valkey-server
redis=${redis:-redis-server}
have "${redis%-server}-cli" || packages+=("$(basename "${redis%-server}")-tools")
have "$redis" || packages+=("$(basename "$redis")")
have perl && perl -MIPC::Run -e1 2>/dev/null || packages+=(libipc-run-perl)

bindir=$(pg_bindir)
if [ -z "$bindir" ]; then
    need_server=1
elif [ ! -e "$("$bindir/pg_config" --includedir-server 2>/dev/null)/postgres.h" ] ||
    [ ! -e "$("$bindir/pg_config" --pgxs 2>/dev/null)" ]; then
    # .../postgresql/15/bin
    packages+=("postgresql-server-dev-$(basename "$(dirname "$bindir")")")
fi
# Without these packages some tests are skipped: t/guest_cron.t, wrong clocks in
# t/tokens_order.t, real pools in t/session_clients.t and t/session_pgbouncer.t, drivers in
# t/session_drivers.t, t/monitoring.t.
case "$bindir" in
/usr/lib/postgresql/*)
    [ -e "${bindir%/bin}/lib/pg_cron.so" ] ||
        optional+=("postgresql-$(basename "$(dirname "$bindir")")-cron")
    ;;
esac
have faketime || optional+=(faketime)
/usr/bin/python3 -c 'import asyncpg' 2>/dev/null || optional+=(python3-asyncpg)
/usr/bin/python3 -c 'import psycopg' 2>/dev/null || optional+=(python3-psycopg)
! have javac || [ -e /usr/share/java/postgresql.jar ] || optional+=(libpostgresql-jdbc-java)
have pgbouncer || [ -x /usr/sbin/pgbouncer ] || optional+=(pgbouncer)
have promtool || optional+=(prometheus)
have prometheus-sql-exporter || optional+=(prometheus-sql-exporter)
have prometheus-postgres-exporter || optional+=(prometheus-postgres-exporter)

if [ -n "$lint" ]; then
    have clang || packages+=(clang)
    have clang-format || packages+=(clang-format)
fi

# libFuzzer and the sanitizers are a package of their own in some releases
can_fuzz()
{
    have clang && echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        clang -x c -fsanitize=fuzzer,address,undefined -o /dev/null - >/dev/null 2>&1
}
if [ -n "$fuzz" ] && ! can_fuzz; then
    packages+=(clang libclang-rt-dev)
fi
if [ -n "$fuzz" ] && ! have llvm-cov; then
    packages+=(llvm)
fi

if [ -n "$models" ]; then
    have java || packages+=(default-jre-headless)
    python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)
fi

if [ -n "$bench" ]; then
    have python3 || packages+=(python3)
    have gnuplot || packages+=(gnuplot-nox)
    have valgrind || packages+=(valgrind)
    [ -e "$("${bindir:-/nowhere}/pg_config" --includedir 2>/dev/null)/libpq-fe.h" ] ||
        packages+=(libpq-dev)
fi

if [ -n "$postgres" ]; then
    have bison || packages+=(bison)
    have flex || packages+=(flex)
fi

# Debian's python3: another python3 in PATH lacks the packages.
if [ -n "$chaos" ]; then
    [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import psycopg2' 2>/dev/null ||
        packages+=(python3 python3-psycopg2)
fi

if [ ${#packages[@]} -eq 0 ] && [ ${#optional[@]} -eq 0 ] && [ -z "$need_server" ]; then
    exit 0
fi

# ---- how to get it ----

if [ ${#packages[@]} -eq 0 ] && [ -z "$need_server" ]; then
    # only optional packages are missing: no reason to ask for a password
    if ! have apt-get || { [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; }; then
        exit 0
    fi
fi

if ! have apt-get; then
    echo "$0: this machine has no apt-get; please install: ${packages[*]}${need_server:+ PostgreSQL with its server headers}" >&2
    exit 1
fi

sudo=
if [ "$(id -u)" -ne 0 ]; then
    if ! have sudo; then
        echo "$0: run this as root or with sudo; missing: ${packages[*]}${need_server:+ postgresql}" >&2
        exit 1
    fi
    sudo=sudo
fi

policy=/usr/sbin/policy-rc.d
cluster_dir=/etc/postgresql-common/createcluster.d
cluster_conf=$cluster_dir/redlock_pg.conf
made_policy=
made_cluster_dir=
made_cluster_conf=

cleanup()
{
    [ -z "$made_policy" ] || $sudo rm -f "$policy"
    [ -z "$made_cluster_conf" ] || $sudo rm -f "$cluster_conf"
    [ -z "$made_cluster_dir" ] || $sudo rmdir --ignore-fail-on-non-empty "$cluster_dir"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

apt()
{
    $sudo env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -q -y -o Dpkg::Use-Pty=0 "$@" </dev/null
}

apt_install()
{
    echo "installing: $*"
    apt install --no-install-recommends "$@"
}

if [ ! -e "$policy" ]; then
    made_policy=1
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod 755 "$policy"
fi

# Missing optional packages are no reason to fail, neither here ...
needed=
[ ${#packages[@]} -eq 0 ] && [ -z "$need_server" ] || needed=1
apt update || [ -z "$needed" ]

if [ -n "$need_server" ]; then
    major=${PG_MAJOR-}
    if [ -z "$major" ]; then
        # the package "postgresql" depends on the default version
        major=$(apt-cache depends postgresql |
            sed -n 's/^ *Depends: *postgresql-\([0-9][0-9]*\)$/\1/p' | head -n 1)
    fi
    if [ -z "$major" ]; then
        echo "$0: apt knows no default PostgreSQL version; say PG_MAJOR=..." >&2
        exit 1
    fi

    # postgresql-common first: its configuration keeps the server's package from
    # creating a cluster
    apt_install postgresql-common
    if [ ! -d "$cluster_dir" ]; then
        made_cluster_dir=1
        $sudo mkdir -p "$cluster_dir"
    fi
    made_cluster_conf=1
    echo "create_main_cluster = false" | $sudo tee "$cluster_conf" >/dev/null
    $sudo chmod 644 "$cluster_conf"

    packages+=("postgresql-$major" "postgresql-server-dev-$major")
    optional+=("postgresql-$major-cron")
fi
for package in "${optional[@]}"; do
    if apt-cache show "$package" >/dev/null 2>&1; then
        packages+=("$package")
    fi
done
[ ${#packages[@]} -gt 0 ] || exit 0

new_services=()
have "$redis" || new_services+=("$redis")
[ -x /usr/sbin/pgbouncer ] || new_services+=(pgbouncer)
for service in prometheus prometheus-sql-exporter prometheus-postgres-exporter; do
    have "$service" || new_services+=("$service")
done

# ... nor here.
apt_install "${packages[@]}" || [ -z "$needed" ]

# The packages start their servers at every boot.
if have systemctl; then
    for service in "${new_services[@]}"; do
        $sudo systemctl --quiet disable "$service.service" >/dev/null 2>&1 || true
    done
fi
