#!/bin/bash
# scripts/dist.sh: the archive of the last commit for PGXN; "make dist" calls this script
#
# One commit makes one archive, byte by byte, on each machine with the same zlib: all
# times are the commit's, and nothing comes from the working tree, the user's
# configuration, the umask or the time zone.  The archive has a bill of materials
# (scripts/sbom.pl).  .gitattributes lists the omitted files.  Writes
# redlock_pg-VERSION.zip into the current directory.  Needs git 2.38 or later.
set -eu

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
to=$PWD
cd "$scripts/.."
version=$(git show HEAD:redlock_pg.control | sed -n "s/^default_version = '\(.*\)'/\1/p")
name=redlock_pg-$version
sbom=$("$scripts/sbom.pl")
TZ=UTC git -c core.attributesFile=/dev/null -c core.autocrlf=false archive --format=zip \
    --prefix="$name/" --add-virtual-file="$name/redlock_pg.spdx.json:$sbom" \
    -o "$to/$name.zip" HEAD
