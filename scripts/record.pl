#!/usr/bin/perl
# scripts/record.pl CHECK RESULT: write a row of test/results.md, with today's date and the commit
#
# The row of the same check is replaced.  A tree with changes is marked "-dirty", unless only
# rows have changed.
use strict;
use warnings;

use FindBin qw($Bin);
use POSIX qw(strftime);

@ARGV == 2 or die "usage: $0 CHECK RESULT\n";
my ($check, $result) = @ARGV;
my $path = "$Bin/../test/results.md";
my $commit = `git -C "$Bin" describe --always 2>/dev/null` || 'unknown';
my $changes = `git -C "$Bin" status --porcelain --untracked-files=no -- :/ ':!/test/results.md' 2>/dev/null`;
my ($head, %rows) = ('');

open my $in, '<', $path or die "$path: $!\n";
while (<$in>)
{
	if (/^\| (?!check \|)(?!---)([^|]+?) \|/) { $rows{$1} = $_; }
	else { $head .= $_; }
}
close $in;
chomp $commit;
$commit .= '-dirty' if $changes;
$rows{$check} = sprintf "| %s | %s | %s | %s |\n", $check, $result, strftime('%Y-%m-%d', localtime), $commit;
open my $out, '>', $path or die "$path: $!\n";
print $out $head, @rows{ sort keys %rows };
close $out;
