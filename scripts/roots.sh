# scripts/roots.sh: Debian releases in directories of their own; sourced by bash
#
# debootstrap makes the directories from the archive of this machine's apt.  They stay
# in $CACHE; remove a directory to get newer packages.  Nothing else of the machine
# changes: a process in a root has its own mounts and process numbers, which end with
# the process.

CACHE=${REDLOCK_MATRIX:-/var/cache/redlock_matrix}

# Prints the first of the machine's repositories with release $1.
mirror_of()
{
    local uri file

    file=$(mktemp)
    for uri in $(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | uniq); do
        if /usr/lib/apt/apt-helper download-file "${uri%/}/dists/$1/InRelease" "$file" \
            >/dev/null 2>&1; then
            rm -f "$file"
            echo "${uri%/}"
            return
        fi
    done
    rm -f "$file"
    die "none of the repositories of this machine's apt has Debian's $1"
}

# Runs a command in directory $1 as the whole machine, with this checkout in /mnt.
in_root()
{
    local root=$1
    shift

    unshare --mount --propagation private --pid --ipc --fork --kill-child -- bash -eu -c '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
        mount --bind -o ro "$0" "$root/mnt"
        exec chroot "$root" env -i HOME=/root TERM=dumb LC_ALL=C DEBIAN_FRONTEND=noninteractive \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
    ' "$ROOT" "$root" "$@" </dev/null
}

need_debootstrap()
{
    command -v debootstrap >/dev/null || {
        apt-get -q update && apt-get -q -y install --no-install-recommends debootstrap
    } >&2
}

# Makes directory $1 of release $2.
make_bare_root()
{
    local root=$1 release=$2 mirror

    mirror=$(mirror_of "$release")
    # older versions of debootstrap lack scripts of newer releases: use the script of sid
    unshare --mount --propagation private --pid --fork --kill-child \
        debootstrap --variant=minbase "$release" "$root" "$mirror" /usr/share/debootstrap/scripts/sid
    cp /etc/hosts "$root/etc/hosts"
    # the release file of sid may be expired
    echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/redlock"
    echo "deb $mirror $release main" >"$root/etc/apt/sources.list"
}
