#!/bin/bash
# scripts/lint.sh: the checks for a change, besides its tests
#
# Checks the formatting; documents against sources (scripts/lint_docs.pl); builds of the
# extension and of the simulator by clang, without warnings; the rules that pure rooms
# (src/protocol, and texts and URLs of src/shared) include only C headers, and that code
# under a spinlock is short; and the unit tests with the address and undefined-behaviour
# sanitizers.
# scripts/deps.sh --lint installs the tools.  Without clang-format the formatting is not
# checked.
# Works in a temporary copy; changes nothing in the checkout.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# 72 characters at most; older commits are not checked.
subjects_are_short()
{
    local first=f771059ac067 long

    git -C "$ROOT" rev-parse --verify -q "$first^{commit}" >/dev/null 2>&1 || return 0
    long=$(git -C "$ROOT" log --no-merges --format=%s "$first..HEAD" | awk 'length($0) > 72')
    [ -z "$long" ] || { echo "$long"; return 1; }
}

# The private copy has no history: check the commits here.
if [ -z "${REDLOCK_INNER-}" ]; then
    subjects_are_short || { echo "FAILED  subjects of commits"; exit 1; }
    echo "ok      subjects of commits"
    run_in_private_copy scripts/lint.sh
fi

begin_inner

failed=0

check()
{
    local what=$1
    shift
    if "$@" >"$TMP/lint.log" 2>&1; then
        echo "ok      $what"
    else
        echo "FAILED  $what"
        cat "$TMP/lint.log"
        failed=1
    fi
}

# The folder tells the process of a line, and the folders it may include: sql includes session;
# session and broker include shared; shared includes driver; driver includes protocol.  The
# protocol, the driver and the other pure files include C99 headers only: programs without
# PostgreSQL or sockets link them.  Only the files of X include X_internal.h.
includes_point_down()
{
    perl -ne '
        BEGIN {
            %below = (protocol => [], driver => [qw(protocol)], shared => [qw(protocol driver)],
                broker => [qw(protocol driver shared)], session => [qw(protocol shared)],
                sql => [qw(protocol shared session)]);
            $c99 = join "|", qw(assert complex ctype errno fenv float inttypes iso646 limits locale math
                setjmp signal stdarg stdbool stddef stdint stdio stdlib string tgmath time wchar wctype);
            %pure = map { ("src/shared/$_.c" => 1, "src/shared/$_.h" => 1) } qw(holder text url);
        }
        ($room) = $ARGV =~ m{^src/(\w+)/};
        if (/^\s*#\s*include/) {
            # a header of ours must be named in this way
            ($name) = m{["<]([^">]+)[">]};
            ($to) = $name =~ m{(?:^|/)(protocol|driver|shared|broker|session|sql)/\w+\.h$};
            @ours = $name =~ m{^(?:\.+/)*([^/]+)$} ? glob "src/*/$1" : ();
            $wrong = $to ? $_ !~ /^#include "$to\/\w+\.h"/ || !grep { $to eq $_ } $room, @{ $below{$room} }
                : @ours > 0 || (($room =~ /^(protocol|driver)$/ || $pure{$ARGV}) && !/^#include <($c99)\.h>/);
            # X_internal.h is for X.c, X.h and X_*.c
            $wrong = 1 if $name =~ m{^(\w+/\w+)_internal\.h$} && $ARGV !~ m{^src/$1(_\w+)?\.[ch]$};
            push @wrong, "$ARGV:$.: $_" if $wrong;
        }
        close ARGV if eof;
        END { print @wrong; exit @wrong > 0 }' src/*/*.[ch]
}

# C99 also has an allocator, a clock and files.  Protocol and driver call only each other, and
# functions that copy and compare.
pure_rooms_call_nothing()
{
    local file

    mkdir "$TMP/protocol"
    for file in src/protocol/*.c src/driver/*.c; do
        "${CC:-cc}" -std=c99 -fno-builtin -DNDEBUG -Isrc -c -o "$TMP/protocol/$(basename "$file" .c).o" "$file" || return 1
    done
    nm -A "$TMP"/protocol/*.o | perl -ne '
        next unless my ($room, $kind, $name) = m{(\w+)\.o:\S* *\S* +(\w) (\w+)$};
        $kind eq "U" ? ($calls{"$room.c calls $name"} = $name) : ($own{$name} = 1);
        END {
            @wrong = grep { !$own{ $calls{$_} } && $calls{$_} !~ /^(mem|str)(cmp|cpy|set|len)$/ } sort keys %calls;
            print map { "$_\n" } @wrong;
            exit @wrong > 0 }'
}

# The last column of the tables of rooms in src/README.md lists the includes of the files.
rooms_are_described()
{
    perl -e '
        my (%includes, %listed, @wrong, $files);
        foreach my $file (glob "src/*/*.[ch]")
        {
            my ($room) = $file =~ m{(\w+)\.[ch]$};
            $includes{$room} //= {};
            open my $in, "<", $file or die "$file: $!";
            while (<$in>)
            {
                $includes{$room}{$1} = 1
                  if /#include "(?:protocol|driver|shared|broker|session|sql)\/(\w+)\.h"/ && $1 ne $room;
            }
        }
        open my $in, "<", "src/README.md" or die "src/README.md: $!";
        while (<$in>)
        {
            $files = /^\| file \|/ if /^\| \w+ \|/;
            next unless $files && /^\| `(\w+)` \| [^|]+ \| ([^|]*)\|$/ && exists $includes{$1};
            my ($room, $uses) = ($1, $2);
            $uses =~ s/\s+$//;
            $listed{$room} = 1;
            my $true = join ", ", sort keys %{ $includes{$room} };
            push @wrong, "$room uses: $true\n" if $uses ne $true;
        }
        push @wrong, map { "$_ is not listed\n" } grep { !$listed{$_} } sort keys %includes;
        print @wrong;
        exit @wrong > 0'
}

# No file includes itself through other files.  Files that share an X_internal.h count as one.
no_circles()
{
    perl -e '
        my (%uses, %seen, @circle);
        my %family = map { m{^src/(\w+/\w+)_internal\.h$} ? ($1 => 1) : () } glob "src/*/*.h";
        sub module
        {
            my ($file) = @_;
            my ($family) = grep { $file =~ /^$_(_|$)/ } sort keys %family;
            return $family // $file;
        }
        foreach my $file (glob "src/*/*.[ch]")
        {
            my $from = module($file =~ s{^src/(\w+/\w+)\.[ch]$}{$1}r);
            open my $in, "<", $file or die "$file: $!";
            while (<$in>)
            {
                next unless m{#include "(\w+/\w+)\.h"};
                $uses{$from}{ module($1) } = 1 if -e "src/$1.h" && module($1) ne $from;
            }
        }
        sub look
        {
            my ($module, @path) = @_;
            if (grep { $_ eq $module } @path) { @circle = (@path, $module); return; }
            return if $seen{$module}++;
            look($_, @path, $module) for sort keys %{ $uses{$module} };
        }
        look($_) for sort keys %uses;
        print join(" -> ", @circle), "\n" if @circle;
        exit @circle > 0'
}

# Between SpinLockAcquire and SpinLockRelease there is no loop, and no call except inline
# functions and copies of texts: a process that waits for a spinlock burns a processor, and
# ends the server after a minute.
spinlocks_are_short()
{
    ! perl -ne '
        $held = 0 if /SpinLockRelease/ || eof;
        print "$ARGV:$.: $_"
          if $held && /\b(for|while|do)\b|\b(?!(?:if|sizeof|strlcpy|Assert|lease_held_by|lease_text_size|lease_is_queued)\b)\w+ ?\(/;
        $held = 1 if /SpinLockAcquire/;
        close ARGV if eof' redlock_pg.c src/*/*.c | grep .
}

# Names that some supported servers lack belong into compat.h: CI builds against two servers
# only.
names_are_everywhere()
{
    ! grep -nE '\b(INT64_MODIFIER|pg_(attribute_)?noreturn|ShmemInitHash)\b' redlock_pg.c src/*/*.[ch] |
        grep -v '^src/shared/compat.h:'
}

# Each test is in a schedule of the Makefile, and each schedule names tests that exist.  TAP tests
# have no schedule: scripts/test.sh runs t/*.t.
tests_are_scheduled()
{
    perl -e '
        open my $in, "<", "Makefile" or die "Makefile: $!";
        my %schedule = map { /^(REGRESS|ISOLATION) *= *(.*)$/ ? ($1 => { map { $_ => 1 } split " ", $2 }) : () } <$in>;
        my %in_both;
        my $wrong = 0;
        sub complain { print "@_\n"; $wrong = 1; }

        foreach (["REGRESS", "sql", "sql"], ["ISOLATION", "specs", "spec"])
        {
            my ($name, $folder, $ext) = @$_;
            my %files = map { m{^$folder/(.*)\.$ext$} ? ($1 => 1) : () } glob "$folder/*";

            complain("$_ is no .$ext") for grep { !/\.$ext$/ } glob "$folder/*";
            complain("$folder/$_.$ext is not in $name of the Makefile") for grep { !$schedule{$name}{$_} } sort keys %files;
            complain("$name of the Makefile names $_, and there is no $folder/$_.$ext")
              for grep { !$files{$_} } sort keys %{ $schedule{$name} };
            complain("expected/$_.out is missing") for grep { !-e "expected/$_.out" } sort keys %files;
            $in_both{$_}++ for keys %files;
        }
        complain("$_ is the name of a regression test and of an isolation test") for grep { $in_both{$_} > 1 } sort keys %in_both;
        foreach (glob "expected/*")
        {
            my ($test) = m{^expected/(.*?)(?:_\d)?\.out$};
            complain("$_ is of no test") unless defined $test && $in_both{$test};
        }
        complain("$_ is neither a TAP test nor a module") for grep { !/\.(t|pm)$|^t\/README\.md$/ } glob "t/*";
        exit $wrong'
}

# Mutants and planted violations replace texts of the sources.
mutants_fit()
{
    perl -Itest/sim -MMutants -e '
        my $wrong = 0;
        foreach my $table (@ARGV)
        {
            foreach my $mutant (read_mutants($table))
            {
                next if eval { edited($mutant) };
                print "$table: $mutant->{name}: $@";
                $wrong = 1;
            }
        }
        exit $wrong' test/sim/mutants.txt test/fuzz/mutants.txt test/chaos/planted.txt
}

# Beside expected/NAME.out, another PostgreSQL has another output: expected/NAME_1.out.  Lines that
# name redlock differ in units of bounds only.
expected_outputs_agree()
{
    local other wrong=0

    for other in expected/*_[0-9].out; do
        diff <(sed 's/ ms\b//g' "${other%_*}.out" | grep redlock) <(sed 's/ ms\b//g' "$other" | grep redlock) ||
            { echo "see ${other%_*}.out and $other"; wrong=1; }
    done
    return $wrong
}

tests_page_is_current()
{
    scripts/tests_page.pl | diff t/README.md -
}

# The table of terms that cannot be combined agrees with src/sql/terms.c.
terms_are_documented()
{
    scripts/terms_table.pl | diff docs/reference/functions.md -
}

# clang may not know all flags of PostgreSQL's compiler.
builds_with_clang()
{
    make -j2 PG_CONFIG="$PG_CONFIG" CC=clang \
        COPT="-Werror -Wno-unknown-warning-option -Wno-ignored-optimization-argument -Wno-ignored-attributes"
}

# Each file by itself, because both directories have a node.h.
simulator_builds_with_clang()
{
    local file

    for file in test/sim/*.c; do
        clang -std=c99 -Wall -Wextra -Werror -fsyntax-only -Itest/sim -Itest/unit -Isrc "$file" || return 1
    done
}

if command -v clang-format >/dev/null; then
    check "formatting" clang-format --dry-run -Werror \
        redlock_pg.c src/*/*.[ch] exec/*.[ch] test/unit/*.c test/unit/*.h test/fuzz/*.[ch] \
        test/sim/*.c test/sim/*.h test/guest/*.c test/chaos/*.c
else
    echo "-       formatting: no clang-format here"
fi
check "includes point down, and the pure rooms include C99 headers only" includes_point_down
check "protocol and driver call no allocator, clock or file" pure_rooms_call_nothing
check "the tables of rooms in src/README.md" rooms_are_described
check "no file uses itself by way of others" no_circles
check "spinlocks are held for a few instructions" spinlocks_are_short
check "names that all supported servers have" names_are_everywhere
check "tests are in the schedules" tests_are_scheduled
check "mutants and planted violations fit the sources" mutants_fit
check "expected outputs of several versions of PostgreSQL" expected_outputs_agree
check "t/README.md agrees with the heads of the tests" tests_page_is_current
check "the table of terms in docs/reference/functions.md" terms_are_documented
check "monitoring/ agrees with its metrics" scripts/monitoring.pl check
check "docs/design/scaling.md agrees with its figures" bench/scale/model.py --check
check "messages in the documents" scripts/lint_docs.pl messages
check "settings in the documents" scripts/lint_docs.pl settings
check "functions and views in the documents" scripts/lint_docs.pl objects
check "links in the documents" scripts/lint_docs.pl links
check "evidence in SAFETY.md and model/README.md" scripts/lint_evidence.pl
check "examples in the documents" scripts/lint_docs.pl examples
check "prose of README and the pages for users" scripts/lint_docs.pl prose
check "versions, and META.json" scripts/lint_docs.pl versions
if command -v clang >/dev/null; then
    check "build with clang" builds_with_clang
    check "simulator with clang" simulator_builds_with_clang
else
    echo "-       build with clang: no clang here"
fi
check "unit tests with sanitizers" make PG_CONFIG="$PG_CONFIG" unit \
    UNIT_CC="gcc -std=c99 -Wall -Wextra -Werror -g -Isrc -fsanitize=address,undefined -fno-sanitize-recover=all"

exit $failed
